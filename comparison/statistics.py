"""Means, spreads, intervals and p-values over the seeds of a comparison."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

import mpmath  # comes with torch; scipy would be a 40 MB wheel for one function

MIN_SEEDS = 3  # with fewer the spread itself is hardly known: no interval is claimed
ALPHA = 0.05  # intervals cover 95 %; a difference counts as beyond the noise below this p-value


def mean_and_spread(values: Sequence[float | None]) -> dict:
    """Mean and sample standard deviation; None for the spread of a single value, for both where one is missing."""
    if not values or None in values:
        return {"mean": None, "sd": None}
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}


def paired(values: Mapping[int, float], baseline: Mapping[int, float]) -> dict:
    """The differences of what shares a seed, in the unit of the values, which are by seed.

    `mean` and `sd` over the `n` shared seeds, `low` and `high` of the 95 % t-interval and the two-sided `p` of the
    paired t-test (Student 1908); the last three are None with fewer than MIN_SEEDS.
    """
    differences = [values[seed] - baseline[seed] for seed in values if seed in baseline]
    numbers, n = mean_and_spread(differences), len(differences)
    if n < MIN_SEEDS:
        return {**numbers, "n": n, "low": None, "high": None, "p": None}
    mean, error = numbers["mean"], numbers["sd"] / math.sqrt(n)
    half = t_quantile(n - 1) * error
    ratio = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    return {**numbers, "n": n, "low": mean - half, "high": mean + half, "p": t_test(ratio, n - 1)}


def t_test(t: float, df: int) -> float:
    """Probability that |Student's t| of df degrees of freedom exceeds |t|. Abramowitz & Stegun 1964, 26.5.27."""
    return float(mpmath.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True))


@cache
def t_quantile(df: int, alpha: float = ALPHA) -> float:
    """The t that is exceeded in magnitude with probability alpha, to 12 digits."""
    low, high = 0.0, 1.0
    while t_test(high, df) > alpha:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_test(middle, df) > alpha else (low, middle)
    return high


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values corrected for their number, so that one wrong claim among all stays as rare as one alone. Holm 1979.

    The smallest of m is multiplied by m, the next by m − 1 …; none becomes smaller than one before it, or above 1.
    """
    corrected, highest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = highest
    return corrected
