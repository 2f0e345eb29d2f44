"""Losses by the context that is available and by the position in the window, also past the trained context."""

import math

import numpy as np
import torch

from model.transformer import Transformer
from training.evaluation import window_nats

TARGETS = 2048  # scored for the loss by context; at 8 times the context each costs 32 tokens, since windows overlap
POSITION_TOKENS = 65_536  # scored for the loss by position


@torch.no_grad()
def loss_by_context(model: Transformer, tokens: np.ndarray, context: int, multiples: tuple[int, ...]) -> list[float]:
    """Mean loss on the same tokens with 1, 2, … times the trained context before them; nats per token.

    A scored token has between multiple · context − stride + 1 and multiple · context tokens before it, with a stride
    of a quarter of the context: windows of that length, of which the last `stride` are scored. At most TARGETS tokens
    are, evenly spread. nan where the text is shorter than the window, or the scheme has no positions that far out.
    """
    stride = max(1, context // 4)
    fitting = [multiple for multiple in multiples if multiple * context < len(tokens)]
    longest = max(fitting, default=0) * context  # sets the targets, whatever the scheme can do
    last_start = len(tokens) - 1 - longest
    blocks = min(max(1, TARGETS // stride), last_start // stride + 1)
    ends = [longest + round(block * last_start / max(1, blocks - 1)) for block in range(blocks)]
    losses = []
    for multiple in multiples:
        length = multiple * context
        if multiple not in fitting or length > (model.position.max_length or length):
            losses.append(math.nan)
        else:
            passes = window_nats(model, tokens, [end - length for end in ends], length, stride)
            losses.append(torch.cat([nats.cpu().double() for nats in passes]).mean().item())
    return losses


@torch.no_grad()
def loss_by_position(model: Transformer, tokens: np.ndarray, context: int, multiple: int) -> list[tuple[int, float]]:
    """Mean loss by position in windows of multiple · context tokens: (n, nats per token).

    Each is the mean over the tokens that have at most n tokens before them in their window, and more than the n of
    the entry before; n grows in steps of an eighth of the context, so that one bin ends at the trained context. At most
    POSITION_TOKENS tokens are scored, in evenly spread windows. nan where the text is shorter than the window, or the
    scheme has no positions that far out.
    """
    length, step = multiple * context, max(1, context // 8)
    limit = min(length, model.position.max_length or length)
    windows = min(max(1, POSITION_TOKENS // length), (len(tokens) - 1) // length)
    starts = [round(n * (len(tokens) - 1 - length) / max(1, windows - 1)) for n in range(windows)]
    passes = window_nats(model, tokens, starts, limit, limit)
    sums = sum((nats.cpu().double().sum(dim=0) for nats in passes), torch.zeros(limit, dtype=torch.float64))
    ends = [*range(step, length, step), length]
    return [
        (end, (sums[begin:end].sum() / (windows * (end - begin))).item() if windows and end <= limit else math.nan)
        for begin, end in zip([0, *ends], ends)
    ]
