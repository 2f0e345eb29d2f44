"""Losses, in nats and in bits per byte."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from model.device import is_out_of_memory
from model.transformer import Transformer
from training.loss import token_losses

EVAL_TOKENS = 8192  # at most in a pass; bounds the memory, whatever batch size is trained with
TARGETS = 2048  # scored for the loss by context; at 8 times the context each costs 32 tokens, since windows overlap
POSITION_TOKENS = 65_536  # scored for the loss by position


@torch.no_grad()
def evaluate(model: Transformer, tokens: np.ndarray, context: int, signals: Sequence[int] = ()) -> float | None:
    """Nats summed over all tokens but the first, each scored once, in windows of `context` side by side.

    None where there are signals after a pass: a list that gets one meanwhile ends the evaluation.
    """
    total, whole = 0.0, (len(tokens) - 1) // context * context
    for part in (tokens[: whole + 1], tokens[whole:]):  # the rest is one shorter window
        length = max(1, min(context, len(part) - 1))
        for nats in _window_nats(model, part, range(0, len(part) - 1, length), length, length):
            total += nats.sum().item()
            if signals:
                return None
    return total


@torch.no_grad()
def loss_by_context(model: Transformer, tokens: np.ndarray, context: int, multiples: tuple[int, ...]) -> list[float]:
    """Mean loss on the same tokens with 1, 2, … times the trained context before them; nats per token.

    A scored token has between multiple · context − stride + 1 and multiple · context tokens before it, with a stride
    of a quarter of the context: windows of that length, of which the last `stride` are scored. At most TARGETS tokens
    are, evenly spread. nan where the text is shorter than the window, or the scheme has no positions so far out.
    """
    stride = max(1, context // 4)
    fitting = [multiple for multiple in multiples if multiple * context < len(tokens)]
    longest = max(fitting, default=0) * context  # targets follow it, and not what the scheme can do
    last_start = len(tokens) - 1 - longest
    blocks = min(max(1, TARGETS // stride), (len(tokens) - 1 - longest) // stride + 1)
    ends = [longest + round(block * last_start / max(1, blocks - 1)) for block in range(blocks)]
    losses = []
    for multiple in multiples:
        length, limit = multiple * context, model.position.max_length
        if multiple not in fitting or (limit is not None and length > limit):
            losses.append(math.nan)
            continue
        starts = [end - length for end in ends]
        nats = [nats.cpu().double() for nats in _window_nats(model, tokens, starts, length, stride)]
        losses.append(torch.cat(nats).mean().item())
    return losses


@torch.no_grad()
def loss_by_position(model: Transformer, tokens: np.ndarray, context: int, multiple: int) -> list[tuple[int, float]]:
    """Mean loss by position in windows of multiple · context tokens side by side: (n, nats per token).

    Each is the mean over the tokens that have at most n tokens before them in their window, and more than the n of
    the entry before; n grows in steps of an eighth of the context, so that one ends where training ended. At most
    POSITION_TOKENS tokens are scored, in evenly spread windows. nan where the text is shorter than the window, or the
    scheme has no positions so far out.
    """
    length, step = multiple * context, max(1, context // 8)
    limit = min(length, model.position.max_length or length)
    windows = min(max(1, POSITION_TOKENS // length), (len(tokens) - 1) // length)
    starts = [round(n * (len(tokens) - 1 - length) / max(1, windows - 1)) for n in range(windows)]
    passes = _window_nats(model, tokens, starts, limit, limit)
    sums = sum((nats.cpu().double().sum(dim=0) for nats in passes), torch.zeros(limit, dtype=torch.float64))
    ends = [*range(step, length, step), length]
    return [
        (end, (sums[begin:end].sum() / (windows * (end - begin))).item() if windows and end <= limit else math.nan)
        for begin, end in zip([0, *ends], ends)
    ]


def in_passes(count: int, length: int, score: Callable[[int, int], Tensor]) -> Iterator[Tensor]:
    """score(first, end) of `count` sequences of `length` tokens, as many at a time as EVAL_TOKENS and memory allow.

    Where the device's memory ends, half as many from there on, down to one.
    """
    first, rows = 0, max(1, EVAL_TOKENS // length)
    while first < count:
        end = min(first + rows, count)
        try:
            scored = score(first, end)
        except RuntimeError as error:
            if end - first == 1 or not is_out_of_memory(error):
                raise
            rows = (end - first) // 2
        else:
            yield scored
            first = end


def _window_nats(model, tokens, starts, length, scored):
    """(windows, scored) nats of the last `scored` targets of windows of `length` inputs, some windows at a time."""

    def score(first, end):
        windows = np.stack([tokens[start : start + length + 1] for start in starts[first:end]])
        windows = torch.from_numpy(windows.astype(np.int64)).to(model.output_weight.device)
        return token_losses(model, windows[:, :-1], windows[:, -scored:])

    return in_passes(len(starts), length, score)


def bits_per_byte(nats: float, text_bytes: int) -> float:
    """Bits per byte of the original text, from the nats summed over all its tokens."""
    return nats / math.log(2) / text_bytes
