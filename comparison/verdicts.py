"""What a comparison finds of each variant: of a text how far its loss is from the baseline's, of a synthetic task how many
seeds learned it."""

from dataclasses import dataclass

from comparison.formats import number
from comparison.inference import ALPHA, MOST_SEEDS, Difference, Share, corrected
from comparison.results import LearnedAt, Results


@dataclass(frozen=True)
class Finding:
    """value: the mean difference in the unit of losses, or the share of seeds that learned in %; low, high: its 95 %
    interval; numbers: these in words, or the loss of the baseline.

    kind: better, worse, equal, undecided, too few seeds, not compared, diverged or baseline; said: with what is to be added.
    """

    kind: str
    said: str
    numbers: str = "n/a"
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_compared(self) -> bool:
        """Whether there is a difference to the baseline."""
        return self.value is not None and self.kind not in ("not compared", "baseline")


def findings(results: Results) -> dict[str, Finding]:
    """Of every variant, the best first, then those that are not compared, then those whose runs all diverged."""
    return of_task(results) if learned(results) else of_losses(results)


def of_losses(results: Results) -> dict[str, Finding]:
    """`findings` by the differences in loss."""
    found = {}
    for variant, row in results.summary.items():
        one = row.difference
        numbers = number(one.mean, "+z.3f") + ("" if one.low is None else f" ({one.low:+z.3f} to {one.high:+z.3f})")
        found[variant] = Finding(one.verdict, _in_full(one, results.margin), numbers, one.mean, one.low, one.high)
    own = f"{results.summary[results.baseline].val_loss.mean:.3f}"
    return _ranked(results, found | {results.baseline: Finding("baseline", "baseline", own, 0.0)}, 1)


def of_task(results: Results) -> dict[str, Finding]:
    """`findings` by the seeds that learned the longest trained length: whether there are more or fewer of them than of the
    baseline's, by Fisher's exact test (1935) with Holm's correction."""
    from scipy.stats import fisher_exact

    shares, baseline, found = learned(results), results.baseline, {}
    tested = {v: at for v, at in shares.items() if v != baseline and not results.summary[v].difference.apart}
    counts = {variant: (at.count, at.n - at.count) for variant, at in shares.items()}
    (p_values,) = corrected({v: float(fisher_exact([counts[v], counts[baseline]]).pvalue) for v in tested})
    for variant, row in results.summary.items():
        at, apart = shares.get(variant), row.difference.apart
        if at is None:
            found[variant] = Finding("not compared", "not compared: no positions that far out")
            continue
        kind = "baseline" if variant == baseline else "not compared"
        if variant in tested:
            more = at.count / at.n > shares[baseline].count / shares[baseline].n
            kind = "undecided" if p_values[variant] >= ALPHA else "better" if more else "worse"
        said = f"{kind}: {apart}" if apart else kind
        found[variant] = Finding(kind, said, in_words(at), 100 * at.count / at.n, 100 * at.low, 100 * at.high)
    return _ranked(results, found, -1)


def in_words(seeds: Share) -> str:
    """`4 of 10 (12 % to 74 %)`."""
    return f"{seeds.count} of {seeds.n} ({100 * seeds.low:.0f} % to {100 * seeds.high:.0f} %)"


def learned(results: Results) -> dict[str, LearnedAt]:
    """How many seeds of each variant learned the longest trained length of a synthetic task; empty without a task."""
    every = [(variant, at) for variant, row in results.summary.items() for at in row.learned]
    found = {variant: at for variant, at in every if at.x == results.trained_length}
    return found if results.baseline in found else {}


def _ranked(results: Results, found: dict[str, Finding], sign: int) -> dict[str, Finding]:
    def key(variant):
        one = found[variant]
        return one.kind == "not compared", one.value is None, sign * (one.value or 0)

    gone = {variant: Finding("diverged", "diverged") for variant in results.diverged if variant not in found}
    return {variant: found[variant] for variant in sorted(found, key=key)} | gone


def _in_full(one: Difference, margin: float) -> str:
    """The verdict, with what would decide an undecided one, or why there is no comparison."""
    if one.verdict == "equal":
        return f"equal within {margin:g}"
    if one.verdict == "undecided":
        said = (
            f"about {one.seeds_needed} new seeds would do" if one.seeds_needed else f"{MOST_SEEDS:,} seeds would not do"
        )
        return f"undecided; {said}"
    return f"not compared: {one.apart}" if one.apart else one.verdict
