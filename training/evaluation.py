"""Losses, in nats and in bits per byte."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from data.batches import windows
from model.device import is_out_of_memory
from model.transformer import Transformer
from training.alone import ALONE, Alone
from training.loss import token_losses

EVAL_TOKENS = 4096  # at most in a pass, whatever the batch in training; for twice as many a CPU takes a quarter longer


@torch.no_grad()
def evaluate(
    model: Transformer,
    tokens: np.ndarray,
    context: int,
    stopping: Callable[[], int] = lambda: 0,
    end_of_text: int | None = None,
    engine: Alone = ALONE,
) -> float | None:
    """Nats summed over all tokens but the first, each scored once, in the `windows` of data.batches.

    Those of one length go together, so that none needs padding. Of several processes each takes a share, and all take
    as many passes. None if stopping() is not 0 after a pass.
    """
    total = 0.0
    starts, lengths = windows(tokens, context, end_of_text)
    for length in np.unique(lengths)[::-1].tolist():
        chosen = starts[lengths == length]
        each = -(-len(chosen) // engine.size)
        left = min(each, max(0, len(chosen) - engine.rank * each))  # the rest of this process's share counts nothing
        chosen = engine.own(np.resize(chosen, each * engine.size))
        with tqdm(total=len(chosen), desc="evaluation", delay=1, leave=False, disable=None) as bar:
            for nats in window_nats(model, tokens, chosen, length, length, engine.size == 1):
                total, left = total + nats[:left].sum().item(), max(0, left - len(nats))
                bar.update(len(nats))
                if stopping():
                    return None
    return engine.sum(torch.tensor(total, dtype=torch.float64)).item()


def in_passes(count: int, length: int, score: Callable[[int, int], Tensor], alone: bool = True) -> Iterator[Tensor]:
    """score(first, end) of `count` sequences of `length` tokens, as many at a time as EVAL_TOKENS and memory allow.

    When the device runs out of memory, half as many from there on, down to one; not if other processes take as many
    passes at the same time.
    """
    first, rows = 0, max(1, EVAL_TOKENS // length)
    while first < count:
        end = min(first + rows, count)
        try:
            scored = score(first, end)
        except RuntimeError as error:
            if not alone or end - first == 1 or not is_out_of_memory(error):
                raise
            rows = (end - first) // 2
        else:
            yield scored
            first = end


def window_nats(
    model: Transformer, tokens: np.ndarray, starts: Sequence[int], length: int, scored: int, alone: bool = True
) -> Iterator[Tensor]:
    """(windows, scored) nats of the last `scored` targets of windows of `length` inputs, some windows at a time, see `in_passes`."""

    def score(first, end):
        windows = np.stack([tokens[start : start + length + 1] for start in starts[first:end]])
        windows = torch.from_numpy(windows.astype(np.int64)).to(model.output_weight.device)
        return token_losses(model, windows[:, :-1], windows[:, -scored:])

    return in_passes(len(starts), length, score, alone)


def bits_per_byte(nats: float, text_bytes: int) -> float:
    """Bits per byte of the original text, from the nats summed over all its tokens."""
    return nats / math.log(2) / text_bytes
