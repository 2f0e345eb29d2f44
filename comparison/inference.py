"""Means, spreads, intervals and p-values over the seeds of a comparison."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev

MIN_SEEDS = 3  # with fewer the spread itself is hardly known: no interval is claimed
ALPHA = 0.05  # intervals cover 95 %; a difference counts as beyond the noise below this p-value


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds, in the unit of the values."""

    mean: float | None  # None where a value is missing
    sd: float | None  # None for a single value too


@dataclass(frozen=True)
class Paired(Spread):
    """Differences of the values that share a seed. The interval and p are None with fewer than MIN_SEEDS."""

    n: int  # shared seeds
    low: float | None  # ends of the 95 % t-interval of the mean
    high: float | None
    p: float | None  # two-sided, of the paired t-test (Student 1908)


@dataclass(frozen=True)
class Difference(Paired):
    """The difference of a variant's final loss to the baseline's."""

    p_holm: float | None  # p corrected for the number of variants; None where there is no p, and for the baseline

    @property
    def verdict(self) -> str:
        """worse, better, within the noise, or no claim."""
        if self.p_holm is None:
            return "no claim"
        if self.p_holm >= ALPHA:
            return "within the noise"
        return "worse" if self.mean > 0 else "better"


def mean_and_spread(values: Sequence[float | None]) -> Spread:
    """The Spread of values, one per seed."""
    if not values or None in values:
        return Spread(None, None)
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> Paired:
    """The differences between values and baseline, both given by seed."""
    differences = [values[seed] - baseline[seed] for seed in values if seed in baseline]
    numbers, n = mean_and_spread(differences), len(differences)
    if n < MIN_SEEDS:
        return Paired(**vars(numbers), n=n, low=None, high=None, p=None)
    from scipy.stats import t  # takes a second, which --list and a first training need not wait for

    mean, error = numbers.mean, numbers.sd / math.sqrt(n)
    half = float(t.isf(ALPHA / 2, n - 1)) * error
    ratio = abs(mean) / error if error else math.inf if mean else 0.0
    return Paired(**vars(numbers), n=n, low=mean - half, high=mean + half, p=2 * float(t.sf(ratio, n - 1)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number, so that one wrong claim among all stays as rare as one alone. Holm 1979.

    The smallest of m is multiplied by m, the next by m − 1 …; none becomes smaller than one before it, or above 1.
    """
    ranked = sorted(p_values, key=p_values.get)
    scaled = [min(1.0, (len(ranked) - rank) * p_values[name]) for rank, name in enumerate(ranked)]
    return dict(zip(ranked, accumulate(scaled, max)))
