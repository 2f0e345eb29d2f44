"""Losses by the context that is available and by the position in the window, below and above the trained context."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from comparison.results import Pairs, Point
from model.transformer import Transformer
from training.evaluation import window_nats

MULTIPLES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8)  # of the context: how much of it a scored token has
ENDS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 1.5, 2, 3, 4, 6, 8)  # of the context: where the bins of positions end
TARGETS = 2048  # scored for the loss by context; at 8 times the context each costs 32 tokens, since windows overlap
TOLERANCE = 0.05  # nats: well above the error of a difference between two lengths up to the context, about 0.01


@torch.no_grad()
def losses_by_length(model: Transformer, tokens: np.ndarray, context: int) -> tuple[Pairs, Pairs]:
    """Mean loss in nats per token by tokens of context, and by position: (n, loss), for n up to 8 times the context.

    By context: the same targets for each length n in MULTIPLES of the context. Each has more than three quarters of n
    tokens before it, all n where n is below 8, and past the context more than n less a quarter of the context: the
    window starts later, at position 0 as in sampling, and of windows of n tokens the last are scored, a power of two
    of them that is at most a quarter of n and of the context. So below the context it is what cropping gives. The
    targets are at most TARGETS, in blocks evenly spread.

    By position: in the windows of the greatest length, the mean over the tokens that have at most n tokens before them
    in their window, and more than the n of the entry before.

    None where the text is too short, the scheme has no positions that far out, or the loss is not finite.
    """

    def nats(starts, length, scored):
        passes = window_nats(model, tokens, starts, length, scored)
        return torch.cat([each.cpu().double() for each in passes])  # (windows, scored)

    lengths, ends = (sorted({int(times * context) for times in some} - {0}) for some in (MULTIPLES, ENDS))
    longest = max((length for length in lengths if length < len(tokens)), default=0)
    limit = min(longest, model.position.max_length or longest)
    # All that sets the targets is the same for every scheme.
    block, last_start = _scored(min(context, longest)), len(tokens) - 1 - longest
    blocks = min(max(1, TARGETS // block), last_start // block + 1)
    starts = [round(n * last_start / max(1, blocks - 1)) for n in range(blocks)]
    whole = nats(starts, limit, limit) if limit else None

    def of_targets(length):
        if length == longest:
            return whole[:, -block:]
        scored = min(block, _scored(length))  # a divisor of the block
        inner = range(longest - length - block + scored, longest - length + 1, scored)
        return nats([start + later for start in starts for later in inner], length, scored)

    by_context = [(length, _mean(of_targets(length)) if length <= limit else None) for length in lengths]
    bins = zip([0, *ends], ends)
    return by_context, [(end, _mean(whole[:, begin:end]) if end <= limit else None) for begin, end in bins]


def _scored(length: int) -> int:
    """The greatest power of two up to a quarter of a length; 1 for those under 8."""
    return 1 << max(0, length.bit_length() - 3)


def _mean(nats: torch.Tensor) -> float | None:
    mean = nats.mean().item()
    return mean if math.isfinite(mean) else None


def effective_context(by_context: Sequence[Point], context: int) -> float | None:
    """The fewest tokens of context, up to the trained one, with which the loss stays within TOLERANCE of that at it.

    Between the lengths measured the loss is taken to be linear in the logarithm of the length; where the shortest
    still suffices, it is the answer. None where a loss that decides is missing. One number tells a curve that is flat
    past the context because the model looks at nothing far (a small number) from one that copes (a large part of the
    context); a share of the drop from the shortest length would hang on where that length lies.
    """
    points = [(point.x, point.mean) for point in sorted(by_context, key=lambda point: -point.x) if point.x <= context]
    if not points or points[0][0] != context or points[0][1] is None:
        return None
    enough = points[0][1] + TOLERANCE
    for (longer, below), (shorter, loss) in zip(points, points[1:]):
        if loss is None:
            return None
        if loss > enough:
            return longer * (shorter / longer) ** ((enough - below) / (loss - below))
    return float(points[-1][0])
