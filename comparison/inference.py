"""Means, spreads, intervals and p-values over the seeds of a comparison."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

MIN_SEEDS = 3  # with fewer the spread itself is hardly known: no interval is claimed
ALPHA = 0.05  # intervals cover 95 %; a claim needs a corrected p-value below it
POWER = 0.8  # with which `seeds_needed` would decide
MOST_SEEDS = 1000


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
    """The difference of a variant's final loss to the baseline's, and whether it is one.

    p_different and p_equal are corrected, together, for the number of variants; None where there is no p, and for the
    baseline.
    """

    apart: str | None  # why there is no comparison, as "512 tokens of context"
    p_different: float | None  # of no difference
    p_equal: float | None  # of a difference beyond the margin: two one-sided t-tests (Schuirmann 1987)
    seeds_needed: int | None  # of an undecided one: with so many seeds it would be decided; None above MOST_SEEDS

    @property
    def verdict(self) -> str:
        """equal (within the margin, which a small difference may be too), better, worse, undecided, too few seeds, or
        not compared."""
        if self.apart:
            return "not compared"
        if self.p_different is None:
            return "too few seeds"
        if self.p_equal < ALPHA:
            return "equal"
        if self.p_different >= ALPHA:
            return "undecided"
        return "worse" if self.mean > 0 else "better"


@dataclass(frozen=True)
class Share:
    """How many of n runs do something."""

    count: int
    n: int
    low: float  # ends of the exact 95 % interval of the share (Clopper & Pearson 1934)
    high: float


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


def equality(numbers: Paired, margin: float) -> float | None:
    """p of a true difference of at least the margin, on either side (Schuirmann 1987); None where numbers has no p."""
    if numbers.p is None:
        return None
    from scipy.stats import t

    room, error = margin - abs(numbers.mean), numbers.sd / math.sqrt(numbers.n)
    return float(t.sf(room / error if error else math.inf if room > 0 else -math.inf, numbers.n - 1))


def seeds_needed(numbers: Paired, margin: float, family: int) -> int | None:
    """The fewest seeds that show a difference, or equality within the margin, in POWER of all trials, if mean and sd are
    as observed; each p-value multiplied by the number of variants in the family. None above MOST_SEEDS.
    """
    import numpy as np
    from scipy.stats import nct, t

    n = np.arange(MIN_SEEDS, MOST_SEEDS + 1)
    error, alpha = numbers.sd / np.sqrt(n), ALPHA / family
    difference = nct.sf(t.isf(alpha / 2, n - 1), n - 1, abs(numbers.mean) / error)
    sides = [nct.sf(t.isf(alpha, n - 1), n - 1, (margin + mean) / error) for mean in (numbers.mean, -numbers.mean)]
    enough = n[(difference >= POWER) | (sum(sides) - 1 >= POWER)]  # both sides, at least their sum less 1
    return int(enough[0]) if len(enough) else None


def share(count: int, n: int) -> Share:
    """count of n, with its exact 95 % interval."""
    from scipy.stats import binomtest

    interval = binomtest(count, n).proportion_ci(1 - ALPHA, method="exact")
    return Share(count, n, float(interval.low), float(interval.high))


def corrected(*tests: Mapping[str, float]) -> list[dict[str, float]]:
    """The p-values of each test by variant, corrected so that one wrong claim among all stays as rare as one alone.

    Holm 1979 for one test; Shaffer 1986 for several whose null hypotheses exclude one another for each variant, as no
    difference and one beyond the margin do.

    From the smallest on, each is multiplied by the number of variants of which a null hypothesis is left, for no more can
    be true; none becomes smaller than one before it, or above 1.
    """
    ranked = sorted((p, index, variant) for index, test in enumerate(tests) for variant, p in test.items())
    left, found, largest = Counter(variant for *_, variant in ranked), [{} for _ in tests], 0.0
    for p, index, variant in ranked:
        largest = found[index][variant] = max(largest, min(1.0, p * len(+left)))
        left[variant] -= 1
    return found
