"""What the results of a comparison say, in sentences. Names of variants stand in backticks, since one may be `none`."""

from collections.abc import Iterable

from comparison.formats import count, seeds
from comparison.inference import MIN_SEEDS
from comparison.results import Results
from comparison.verdicts import findings, learned

MOST_NAMES = 4  # in a row
NOISE = "beyond the noise"


def sentences(results: Results) -> list[str]:
    """The answer, the strongest caveat, and what else a reader has to know, strongest first."""
    said = [_of_task(results) if learned(results) else _of_losses(results), *caveats(results)]
    kinds = [one.kind for one in findings(results).values()]
    if sum(kind in ("better", "worse", "equal", "undecided") for kind in kinds) > 1:
        said.append(f"Variants are tested against `{results.baseline}`, not against each other.")
    if results.tuning:
        said.append(
            "Learning rates were chosen on the tuning half of the validation text, with "
            f"{seeds(results.tuning_seeds)}; every loss outside the table of learning rates is of the other "
            "half." + f" The range was widened for {named(results.widened)}." * bool(results.widened)
        )
    return said + results.notes


def named(variants: Iterable[str]) -> str:
    """`a`, `b` and `c`; of many the first few, and how many more."""
    quoted = [f"`{variant}`" for variant in variants]
    if len(quoted) > MOST_NAMES:
        quoted = [*quoted[: MOST_NAMES - 1], f"{len(quoted) - MOST_NAMES + 1} more"]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))


def _of_losses(results: Results) -> str:
    """Which variant has the lowest loss, what is decided, and what to keep if nothing better is."""
    baseline, unit, own = f"`{results.baseline}`", results.unit, results.summary[results.baseline]
    compared = {variant: one for variant, one in findings(results).items() if one.is_compared}
    if not compared:
        return f"{baseline} ends at {own.val_loss.mean:.4f} {unit}: there is nothing to compare it with."
    best, better = next(iter(compared)), any(one.kind == "better" for one in compared.values())
    lowest = "has the lowest mean loss"
    if any(results.summary[variant].seeds != own.seeds for variant in compared):
        lowest += " on shared seeds"  # which the means of the table are not restricted to
    if len(compared) < len(results.summary) - 1:
        lowest += " of those compared"
    parts = [f"{baseline}, at {own.val_loss.mean:.4f} {unit}, {lowest}"]
    if compared[best].value < 0:
        found = compared.pop(best)
        surely = {"better": NOISE, "equal": "which counts as equal", "undecided": "which decides nothing yet"}
        how = surely.get(found.kind, f"with fewer than {MIN_SEEDS} seeds no evidence")
        by = f"{-found.value:.3f}" if round(found.value, 3) else "less than 0.001"
        parts = [f"`{best}` {lowest}, {by} {unit} below {baseline}, {how}"]
    kinds = {"better": f"better {NOISE}", "equal": f"equal to {baseline} within {results.margin:g}"}
    kinds |= {"worse": f"worse {NOISE}", "undecided": "undecided", "too few seeds": "too few seeds to tell"}
    parts += by_kind({variant: one.kind for variant, one in compared.items()}, kinds)
    if not better:
        parts.append(f"nothing is better {NOISE}: keep {baseline}")
    return "; ".join(parts) + "."


def _of_task(results: Results) -> str:
    """Which variants learned the task in most seeds."""
    shares, found, baseline = learned(results), findings(results), results.baseline
    own, length = shares[baseline], f"length {results.trained_length}, the longest trained,"
    if not any(at.count for at in shares.values()):
        return f"No variant learned {length} with any seed: the task tells nothing here."
    ranked = [variant for variant, one in found.items() if one.is_compared or variant == baseline]
    best = [variant for variant in ranked if found[variant].value == found[ranked[0]].value]
    of = " or ".join(sorted({f"{shares[variant].count} of {shares[variant].n}" for variant in best}))
    parts = [f"{length.capitalize()} was learned by {of} seeds with {named(best)}"]
    if baseline not in best:
        parts.append(f"by {own.count} of {own.n} with the baseline `{baseline}`")
    kinds = {"better": f"more often than `{baseline}` {NOISE}", "worse": f"less often {NOISE}"}
    parts += by_kind({variant: one.kind for variant, one in found.items()}, kinds | {"undecided": "undecided"})
    return "; ".join(parts) + "."


def by_kind(found: dict[str, str], kinds: dict[str, str]) -> list[str]:
    """`worse: a and b` for each kind of which there are variants. found: kind by variant; kinds: the words for each."""
    names = {kind: [variant for variant, own in found.items() if own == kind] for kind in kinds}
    return [f"{said}: {named(names[kind])}" for kind, said in kinds.items() if names[kind]]


def caveats(results: Results) -> list[str]:
    """What weakens the answer, the strongest first."""
    summary, baseline, found, said = results.summary, results.baseline, findings(results), []
    lost = {variant: lost_seeds(results, variant) for variant in summary}
    if lost[baseline]:
        which = seeds(lost[baseline])
        said.append(f"The baseline `{baseline}` diverged with {which}: it is judged by the others, which flatters it.")
    if few := [variant for variant, one in found.items() if one.kind == "too few seeds"]:
        who = "" if len(few) == len(summary) - 1 else f" Concerns {named(few)}."
        said.append(f"With fewer than {MIN_SEEDS} shared seeds the noise is unknown: no interval, no claim.{who}")
    said += _tuning(results)
    if others := [variant for variant in summary if variant != baseline and lost[variant]]:
        said.append(f"Seeds diverged with {named(others)}: judged by the others, which flatters.")
    if gone := [variant for variant, one in found.items() if one.kind == "diverged"]:
        said.append(f"Every run diverged with {named(gone)}: there are no numbers.")
    general = (
        f"One text, {' or '.join(map(count, results.tokens))} tokens: seeds vary the start and the order of the data, so "
        "nothing here speaks of other texts, budgets or sizes of the model."
    )
    apart = [variant for variant, one in found.items() if one.kind == "not compared"]
    if not apart:
        return [*said, general]
    why = ", ".join(f"`{variant}` ({found[variant].said.removeprefix('not compared: ')})" for variant in apart)
    why = f"Not compared with `{baseline}`, for what differs beside: {why}."
    return [*said, general, why] if any(one.is_compared for one in found.values()) else [*said, why, general]


def _tuning(results: Results) -> list[str]:
    edge = [variant for variant in results.summary if variant in results.at_edge]
    if are_chosen(results):
        return [f"Learning rates ({rates(results)}) were chosen by runs that are not here: how well, these cannot say."]
    if not results.tuning:
        return [f"Learning rates were given ({rates(results)}), none was tuned: another may change the order."]
    if len(edge) == len(results.summary):
        return ["Every best learning rate is at the edge of those tried: nothing is tuned."]
    return [f"Best at the edge of the learning rates tried, so perhaps not yet tuned: {named(edge)}."] * bool(edge)


def are_chosen(results: Results) -> bool:
    """Whether runs that are not among these chose the learning rates, as their half of the validation text says."""
    reported = (run.config.get("data", {}).get("val_part") for runs in results.runs.values() for run in runs)
    return not results.tuning and "reporting" in reported


def lost_seeds(results: Results, variant: str) -> list[int]:
    """Seeds that diverged at the learning rate that a variant is shown at."""
    row = results.summary[variant]
    runs = results.diverged.get(variant, [])
    lost = {run.seed for run in runs if run.learning_rate == row.learning_rate}
    return sorted(lost - {*row.seeds, *results.tuning_seeds})


def rates(results: Results) -> str:
    """The learning rates that variants are shown at: `0.001`, or `0.001 to 0.004`."""
    used = [row.learning_rate for row in results.summary.values()]
    return " to ".join(f"{rate:g}" for rate in sorted({min(used), max(used)}))
