"""From the numbers of single runs to those of each variant."""

import statistics
from collections.abc import Mapping
from dataclasses import fields

from comparison import results
from comparison.inference import Difference, holm, mean_and_spread, paired


def sweep(runs: list[results.Run]) -> list[results.RateSpread]:
    """Mean and standard deviation of a variant's final loss over seeds, for each learning rate that was tried."""
    found = []
    for rate in dict.fromkeys(run.learning_rate for run in runs):
        some = [run for run in runs if run.learning_rate == rate]
        spread = mean_and_spread([run.val_loss for run in some if not run.diverged])
        lost = [run.seed for run in some if run.diverged]
        found.append(results.RateSpread(**vars(spread), learning_rate=rate, diverged=lost))
    return found


def best_rate(runs: list[results.Run]) -> list[results.LoggedRun]:
    """A variant's runs that did not diverge, at the learning rate with the lowest mean loss.

    A rate at which fewer seeds diverged comes before one at which more did. No runs where all did.
    """
    rates = [row for row in sweep(runs) if row.mean is not None]
    if not rates:
        return []
    best = min(rates, key=lambda row: (len(row.diverged), row.mean)).learning_rate
    return [run for run in runs if run.learning_rate == best and not run.diverged]


def summarize(runs: Mapping[str, list[results.MeasuredRun]], baseline: str) -> dict[str, results.VariantSummary]:
    """The numbers of each variant over its seeds, and its differences to the baseline, paired by seed."""
    final = {variant: {run.seed: run.val_loss for run in measured} for variant, measured in runs.items()}
    differences = {variant: paired(losses, final[baseline]) for variant, losses in final.items()}
    corrected = holm({v: row.p for v, row in differences.items() if v != baseline and row.p is not None})
    summary = {}
    for variant, measured in runs.items():
        one = measured[0]
        summary[variant] = results.VariantSummary(
            learning_rate=one.learning_rate,
            seeds=[run.seed for run in measured],
            val_loss=mean_and_spread([run.val_loss for run in measured]),
            val_bits_per_byte=mean_and_spread([run.val_bits_per_byte for run in measured]),
            difference=Difference(**vars(differences[variant]), p_holm=corrected.get(variant)),
            curve=_over_seeds(measured, "curve"),
            difference_curve=_differences(measured, runs[baseline]),
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
            tokens_per_second=statistics.median(run.tokens_per_second for run in measured),
            decode_tokens_per_second=statistics.median(run.decode_tokens_per_second for run in measured),
        )
    return summary


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


def _differences(measured: list[results.MeasuredRun], baseline: list[results.MeasuredRun]) -> list[results.PairedPoint]:
    """Paired differences of the loss at each number of tokens that all runs have."""
    ours, theirs = ([run.seed for run in some] for some in (measured, baseline))
    found = []
    for x, losses in _at_shared_x([*measured, *baseline], "curve").items():
        pairs = paired(dict(zip(ours, losses)), dict(zip(theirs, losses[len(ours) :])))
        found.append(results.PairedPoint(**vars(pairs), x=x))
    return found


def _at_shared_x(some: list, key: str) -> dict[int, list[float | None]]:
    """x: value in each curve, which is an attribute of each of some, for the x that all curves have."""
    curves = [dict(getattr(one, key) or ()) for one in some]
    return {x: [curve[x] for curve in curves] for x in curves[0] if all(x in curve for curve in curves)}
