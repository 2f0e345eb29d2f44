"""Losses, in nats and in bits per byte."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.transformer import Transformer

EVAL_TOKENS = 8192  # a pass; bounds the memory, whatever batch size is trained with
MAX_BLOCKS = 128  # scored blocks for the loss by context


def summed_loss(model: Transformer, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the B·T tokens of input_ids and targets (B, T)."""
    logits = model(input_ids)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


@torch.no_grad()
def evaluate(model: Transformer, tokens: np.ndarray, context: int) -> float:
    """Nats summed over all tokens but the first, each scored once, in windows of `context` side by side."""
    device = model.output_weight.device
    total, start, last = 0.0, 0, len(tokens) - 1
    while start < last:
        rows = min(max(1, EVAL_TOKENS // context), (last - start) // context) or 1
        end = min(start + rows * context, last)  # one shorter window where the tokens don't fill the last
        window = torch.from_numpy(tokens[start : end + 1].astype(np.int64)).to(device)
        total += summed_loss(model, window[:-1].view(rows, -1), window[1:].view(rows, -1)).item()
        start = end
    return total


@torch.no_grad()
def loss_by_context(model: Transformer, tokens: np.ndarray, context: int, multiples: tuple[int, ...]) -> list[float]:
    """Mean loss on the same tokens with 1, 2, … times the trained context before and among them; nats per token.

    The scored tokens are blocks of `context` (at most MAX_BLOCKS, evenly spread), each at the end of a window of
    multiple · context tokens. nan where the scheme has no positions so far out.
    """
    device, longest = model.output_weight.device, max(multiples) * context
    last_start = len(tokens) - 1 - longest
    blocks = min(MAX_BLOCKS, last_start // context + 1)
    if blocks < 1:
        return [math.nan] * len(multiples)
    ends = [longest + round(block * last_start / max(1, blocks - 1)) for block in range(blocks)]
    losses = []
    for multiple in multiples:
        length, total = multiple * context, 0.0
        if model.position.max_length is not None and length > model.position.max_length:
            losses.append(math.nan)
            continue
        rows = max(1, EVAL_TOKENS // length)
        for first in range(0, blocks, rows):
            windows = np.stack([tokens[end - length : end + 1] for end in ends[first : first + rows]])
            windows = torch.from_numpy(windows.astype(np.int64)).to(device)
            logits = model(windows[:, :-1], logits_to_keep=context)
            targets = windows[:, -context:]
            total += F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum").item()
        losses.append(total / (blocks * context))
    return losses


def bits_per_byte(nats: float, text_bytes: int) -> float:
    """Bits per byte of the original text, from the nats summed over all its tokens."""
    return nats / math.log(2) / text_bytes
