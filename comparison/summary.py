"""From the numbers of single runs to those of each variant."""

from collections.abc import Mapping
from dataclasses import fields, replace

from comparison import results
from comparison.inference import Difference, corrected, equality, mean_and_spread, paired, seeds_needed, share

LEARNED = 0.9  # of the examples of one length


def sweep(runs: list[results.Run]) -> list[results.RateSpread]:
    """Mean and standard deviation of a variant's final loss over seeds, by learning rate, lowest first."""
    found = []
    for rate in sorted({run.learning_rate for run in runs}):
        some = [run for run in runs if run.learning_rate == rate]
        spread = mean_and_spread([run.val_loss for run in some if not run.diverged])
        lost = [run.seed for run in some if run.diverged]
        found.append(results.RateSpread(**vars(spread), learning_rate=rate, diverged=lost))
    return found


def best_rate(rates: list[results.RateSpread]) -> float | None:
    """The learning rate of the lowest mean among those where the fewest seeds diverged; None where all did."""
    usable = [row for row in rates if row.mean is not None]
    return min(usable, key=lambda row: (len(row.diverged), row.mean)).learning_rate if usable else None


def summarize(
    runs: Mapping[str, list[results.MeasuredRun]], baseline: str, margin: float, apart: Mapping[str, str]
) -> dict[str, results.VariantSummary]:
    """The numbers of each variant over its seeds, and its differences to the baseline, paired by seed.

    apart: variants that cannot be compared with the baseline, and why. They are in no test.
    """
    final = {variant: {run.seed: run.val_loss for run in measured} for variant, measured in runs.items()}
    differences = {variant: paired(losses, final[baseline]) for variant, losses in final.items()}
    tested = {v: row for v, row in differences.items() if v != baseline and v not in apart and row.p is not None}
    p_values = {v: row.p for v, row in tested.items()}, {v: equality(row, margin) for v, row in tested.items()}
    different, equal = corrected(*p_values)  # a true difference cannot be both 0 and beyond the margin
    summary = {}
    for variant, measured in runs.items():
        one, pairs = measured[0], differences[variant]
        difference = Difference(
            **vars(pairs), apart=apart.get(variant), p_different=different.get(variant),
            p_equal=equal.get(variant), seeds_needed=None,
        )  # fmt: skip
        if difference.verdict == "undecided":
            difference = replace(difference, seeds_needed=seeds_needed(pairs, margin, len(tested)))
        summary[variant] = results.VariantSummary(
            learning_rate=one.learning_rate,
            seeds=[run.seed for run in measured],
            val_loss=mean_and_spread([run.val_loss for run in measured]),
            val_bits_per_byte=mean_and_spread([run.val_bits_per_byte for run in measured]),
            difference=difference,
            curve=_over_seeds(measured, "curve"),
            difference_curve=_differences(measured, runs[baseline], "curve"),
            difference_by_position=_differences(measured, runs[baseline], "loss_by_position"),
            learned=_learned(measured),
            grad_norm=_over_seeds(measured, "grad_norm"),
            scheme_metrics={
                name: _scheme_metric([run.scheme_metrics[name] for run in measured]) for name in one.scheme_metrics
            },
            **vars(_evaluation(measured)),
            evaluated_with={
                name: _evaluation([run.evaluated_with[name] for run in measured]) for name in one.evaluated_with
            },
            attention=one.attention,
            embedding_rms=one.embedding_rms,
            position_parameters=one.position_parameters,
            parameters=one.parameters,
        )
    return summary


def _learned(measured: list[results.MeasuredRun]) -> list[results.LearnedAt]:
    """By length of a synthetic task, the runs that answer at least LEARNED of its examples: seeds either learn such a
    task or don't, and a mean of the two says nothing."""
    found = []
    for x, shares in _at_shared_x(measured, "exact_match").items():
        if None not in shares:
            found.append(results.LearnedAt(**vars(share(sum(each >= LEARNED for each in shares), len(shares))), x=x))
    return found


def _scheme_metric(some: list[results.SchemeMetric]) -> results.SchemeMetric:
    return results.SchemeMetric(some[0].words, _over_seeds(some, "largest"), _over_seeds(some, "at_end"))


def _evaluation(some: list[results.Evaluation]) -> results.Evaluation:
    return results.Evaluation(*(_over_seeds(some, field.name) for field in fields(results.Evaluation)))


def _over_seeds(some: list, key: str) -> list[results.Point]:
    points = []
    for x, values in _at_shared_x(some, key).items():
        low, high = (None, None) if None in values else (min(values), max(values))
        points.append(results.Point(**vars(mean_and_spread(values)), x=x, low=low, high=high))
    return points


def _differences(
    measured: list[results.MeasuredRun], baseline: list[results.MeasuredRun], key: str
) -> list[results.PairedPoint]:
    """Paired differences of a loss at each x that all runs have a number for."""
    ours, theirs = ([run.seed for run in some] for some in (measured, baseline))
    found = []
    for x, losses in _at_shared_x([*measured, *baseline], key).items():
        if None not in losses:
            pairs = paired(dict(zip(ours, losses)), dict(zip(theirs, losses[len(ours) :])))
            found.append(results.PairedPoint(**vars(pairs), x=x))
    return found


def _at_shared_x(some: list, key: str) -> dict[int, list[float | None]]:
    """x: value in each curve, which is an attribute of each of some, for the x that all curves have."""
    curves = [dict(getattr(one, key) or ()) for one in some]
    return {x: [curve[x] for curve in curves] for x in curves[0] if all(x in curve for curve in curves)}
