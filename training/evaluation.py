"""Losses, in nats and in bits per byte."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from data.batches import windows
from model.device import is_out_of_memory
from model.transformer import Transformer
from training.loss import token_losses

EVAL_TOKENS = 8192  # at most in a pass; bounds the memory, whatever the batch size in training


@torch.no_grad()
def evaluate(
    model: Transformer, tokens: np.ndarray, context: int, signals: Sequence[int] = (), end_of_text: int | None = None
) -> float | None:
    """Nats summed over all tokens but the first, each scored once, in the `windows` of data.batches.

    Those of one length go together, so that none needs padding. None if `signals`, a list that a signal handler may fill
    meanwhile, holds any after a pass.
    """
    total = 0.0
    starts, lengths = windows(tokens, context, end_of_text)
    for length in np.unique(lengths)[::-1].tolist():
        for nats in window_nats(model, tokens, starts[lengths == length], length, length):
            total += nats.sum().item()
            if signals:
                return None
    return total


def in_passes(count: int, length: int, score: Callable[[int, int], Tensor]) -> Iterator[Tensor]:
    """score(first, end) of `count` sequences of `length` tokens, as many at a time as EVAL_TOKENS and memory allow.

    When the device runs out of memory, half as many from there on, down to one.
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


def window_nats(
    model: Transformer, tokens: np.ndarray, starts: Sequence[int], length: int, scored: int
) -> Iterator[Tensor]:
    """(windows, scored) nats of the last `scored` targets of windows of `length` inputs, some windows at a time."""

    def score(first, end):
        windows = np.stack([tokens[start : start + length + 1] for start in starts[first:end]])
        windows = torch.from_numpy(windows.astype(np.int64)).to(model.output_weight.device)
        return token_losses(model, windows[:, :-1], windows[:, -scored:])

    return in_passes(len(starts), length, score)


def bits_per_byte(nats: float, text_bytes: int) -> float:
    """Bits per byte of the original text, from the nats summed over all its tokens."""
    return nats / math.log(2) / text_bytes
