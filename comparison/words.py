"""What the results of a comparison say, in sentences. Names of variants stand in backticks, since one may be `none`."""

from collections.abc import Iterable

from comparison.formats import count, numbered
from comparison.inference import ALPHA, MIN_SEEDS, holm
from comparison.results import LearnedAt, Results

MOST_NAMES = 4  # in a row
NOISE = "beyond the noise"


def sentences(results: Results) -> list[str]:
    """The answer, the strongest caveat, and what else a reader has to know, strongest first."""
    said = [learned_answer(results) if learned(results) else answer(results), *caveats(results)]
    others = [row.difference for variant, row in results.summary.items() if variant != results.baseline]
    if sum(one.verdict in ("better", "worse", "equal", "undecided") for one in others) > 1:
        said.append(f"Variants are tested against `{results.baseline}`, not against each other.")
    if results.tuning:
        seeds, widened = results.tuning_seeds, named(results.widened)
        said.append(
            f"Learning rates were chosen on the tuning half of the validation text, with {numbered('seed', seeds)}; "
            "every loss outside the table of learning rates is of the other half."
            + f" The range was widened for {widened}."
            * bool(widened)
        )
    return said + results.notes


def named(variants: Iterable[str]) -> str:
    """`a`, `b` and `c`; of many the first few, and how many more."""
    quoted = [f"`{variant}`" for variant in variants]
    if len(quoted) > MOST_NAMES:
        quoted = [*quoted[: MOST_NAMES - 1], f"{len(quoted) - MOST_NAMES + 1} more"]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))


def answer(results: Results) -> str:
    """Which variant has the lowest loss, what is decided, and what to keep if nothing better is."""
    summary, baseline, unit = results.summary, f"`{results.baseline}`", results.unit
    others = {variant: row.difference for variant, row in summary.items() if variant != results.baseline}
    ranked = [v for v, one in others.items() if one.mean is not None and not one.apart]
    ranked.sort(key=lambda variant: others[variant].mean)
    loss = f"{summary[results.baseline].val_loss.mean:.4f} {unit}"
    if not ranked:
        return f"{baseline} ends at {loss}: there is nothing to compare it with."
    kinds = {"better": f"better {NOISE} too", "equal": f"equal to {baseline} within {results.margin:g}"}
    kinds |= {"worse": f"worse {NOISE}", "undecided": "undecided", "too few seeds": "too few seeds to tell"}
    best = ranked[0]
    parts = [f"{baseline} has the lowest mean loss, {loss}"]
    if others[best].mean < 0:
        surely = {"better": NOISE, "equal": "which counts as equal", "undecided": "which decides nothing yet"}
        how = surely.get(others[best].verdict, f"with fewer than {MIN_SEEDS} seeds no evidence")
        parts = [f"`{best}` has the lowest mean loss, {-others[best].mean:.3f} {unit} below {baseline}, {how}"]
        ranked.remove(best)
    for kind, words in kinds.items():
        if some := [name for name in ranked if others[name].verdict == kind]:
            parts.append(f"{words}: {named(some)}")
    if not any(one.verdict == "better" for one in others.values()):
        parts.append(f"nothing is better {NOISE}: keep {baseline}")
    return "; ".join(parts) + "."


def learned(results: Results) -> dict[str, LearnedAt]:
    """How many seeds of each variant learned a synthetic task at the longest trained length; empty without a task."""
    found = {}
    for variant, row in results.summary.items():
        trained = [at for at in row.learned if at.x <= (results.trained_length or at.x)] or row.learned
        if trained:
            found[variant] = max(trained, key=lambda at: at.x)
    return found if results.baseline in found else {}


def learned_verdicts(results: Results) -> dict[str, str]:
    """Whether more or fewer seeds of each variant learned the task than the baseline's: better, worse or undecided, by
    Fisher's exact test (1935) with Holm's correction."""
    from scipy.stats import fisher_exact

    shares = learned(results)
    table = {v: (at.count, at.n - at.count) for v, at in shares.items() if not results.summary[v].difference.apart}
    own = table.pop(results.baseline)
    p_values = holm({variant: float(fisher_exact([row, own]).pvalue) for variant, row in table.items()})
    found = {}
    for variant, (right, missed) in table.items():
        side = "better" if right * own[1] > own[0] * missed else "worse"
        found[variant] = side if p_values[variant] < ALPHA else "undecided"
    return found


def learned_answer(results: Results) -> str:
    """Which variants learned the task in most seeds."""
    shares, baseline = learned(results), results.baseline
    own, x, verdicts = shares[baseline], shares[baseline].x, learned_verdicts(results)
    most = max(shares[v].count / shares[v].n for v in (baseline, *verdicts))
    best = [v for v in (baseline, *verdicts) if shares[v].count / shares[v].n == most]
    of = " or ".join(sorted({f"{shares[v].count} of {shares[v].n}" for v in best}))
    parts = [f"Length {x}, the longest trained, was learned by {of} seeds with {named(best)}"]
    if not most:
        return f"No variant learned length {x}, the longest trained, with any seed: the task tells nothing here."
    if baseline not in best:
        parts.append(f"by {own.count} of {own.n} with the baseline `{baseline}`")
    for words, kind in ((f"more often than `{baseline}` {NOISE}", "better"), (f"less often {NOISE}", "worse"),
                        ("undecided", "undecided")):  # fmt: skip
        if some := [variant for variant in verdicts if verdicts[variant] == kind]:
            parts.append(f"{words}: {named(some)}")
    return "; ".join(parts) + "."


def caveats(results: Results) -> list[str]:
    """What weakens the answer, the strongest first."""
    summary, baseline, said = results.summary, results.baseline, []
    lost = {variant: lost_seeds(results, variant) for variant in summary}
    if lost[baseline]:
        seeds = numbered("seed", lost[baseline])
        said.append(f"The baseline `{baseline}` diverged with {seeds}: it is judged by the others, which flatters it.")
    few = [v for v, row in summary.items() if v != baseline and row.difference.verdict == "too few seeds"]
    if few:
        who = "" if len(few) == len(summary) - 1 else f" Concerns {named(few)}."
        said.append(f"With fewer than {MIN_SEEDS} shared seeds the noise is unknown: no interval, no claim.{who}")
    said += _tuning(results)
    if others := [variant for variant in summary if variant != baseline and lost[variant]]:
        said.append(f"Seeds diverged with {named(others)}: judged by the others, which flatters.")
    if gone := [variant for variant in results.diverged if variant not in summary]:
        said.append(f"Every run diverged with {named(gone)}: there are no numbers.")
    if apart := [f"`{v}` ({row.difference.apart})" for v, row in summary.items() if row.difference.apart]:
        said.append(f"Not compared with `{baseline}`, for what differs beside: {', '.join(apart)}.")
    budget = " or ".join(map(count, results.tokens))
    return [
        *said,
        f"One text, one model size, {budget} tokens: seeds vary the start and the order of the data, so nothing "
        "here speaks of other texts, sizes or budgets.",
    ]


def lost_seeds(results: Results, variant: str) -> list[int]:
    """Seeds that diverged at the learning rate that a variant is shown at."""
    row = results.summary[variant]
    runs = results.diverged.get(variant, [])
    return sorted({run.seed for run in runs if run.learning_rate == row.learning_rate} - {*row.seeds})


def rates(results: Results) -> str:
    """The learning rates that variants are shown at: `0.001`, or `0.001 to 0.004`."""
    used = [row.learning_rate for row in results.summary.values()]
    return " to ".join(f"{rate:g}" for rate in sorted({min(used), max(used)}))


def _tuning(results: Results) -> list[str]:
    edge = [variant for variant in results.summary if variant in results.at_edge]
    if not results.tuning:
        return [f"Learning rates were given ({rates(results)}), none was tuned: another may change the order."]
    if len(edge) == len(results.summary):
        return ["Every best learning rate is at the edge of those tried: nothing is tuned."]
    return [f"Best at the edge of the learning rates tried, so perhaps not yet tuned: {named(edge)}."] * bool(edge)
