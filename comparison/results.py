"""From the numbers of single runs to those of a comparison."""

import statistics
from collections.abc import Mapping

from comparison.statistics import holm, mean_and_spread, paired


def sweep(runs: list[dict]) -> list[dict]:
    """For each learning rate of a variant's runs mean and standard deviation of the validation loss over seeds.

    `diverged` has the seeds that did; they are in neither, which are None where all did.
    """
    found = []
    for rate in dict.fromkeys(run["learning_rate"] for run in runs):
        some = [run for run in runs if run["learning_rate"] == rate]
        losses = [run["val_loss"] for run in some if not run["diverged"]]
        seeds = [run["seed"] for run in some if run["diverged"]]
        found.append({"learning_rate": rate, **mean_and_spread(losses), "diverged": seeds})
    return found


def best_rate(runs: list[dict]) -> list[dict]:
    """The runs of a variant that have the learning rate with the lowest mean validation loss, and did not diverge.

    A rate at which fewer seeds diverged comes before one at which more did. No runs where all did.
    """
    rates = [row for row in sweep(runs) if row["mean"] is not None]
    if not rates:
        return []
    best = min(rates, key=lambda row: (len(row["diverged"]), row["mean"]))
    return [run for run in runs if run["learning_rate"] == best["learning_rate"] and not run["diverged"]]


def summarize(runs: Mapping[str, list[dict]], baseline: str) -> dict[str, dict]:
    """Per variant the numbers over its seeds, and the differences to the baseline paired by seed.

    runs: for each variant what `read_run` and `measure` say of each seed's run. `difference` has `p_holm` beside
    what `paired` gives: corrected for the number of variants, None where there is no p.
    """
    summary = {}
    for variant, measured in runs.items():
        one = measured[0]
        summary[variant] = {
            "learning_rate": one["learning_rate"],
            "seeds": [run["seed"] for run in measured],
            "val_loss": mean_and_spread([run["val_loss"] for run in measured]),
            "val_bits_per_byte": mean_and_spread([run["val_bits_per_byte"] for run in measured]),
            "difference": paired(*(_by_seed(some, "val_loss") for some in (measured, runs[baseline]))),
            "curve": _over_seeds(measured, "curve"),
            "difference_curve": _differences(measured, runs[baseline]),
            "grad_norm": _over_seeds(measured, "grad_norm"),
            "theta_drift": _over_seeds(measured, "theta_drift"),
            "theta_drift_by_pair": _over_seeds(measured, "theta_drift_by_pair"),
            **_evaluations(measured),
            "evaluated_with": {
                name: _evaluations([run["evaluated_with"][name] for run in measured]) for name in one["evaluated_with"]
            },
            "attention": one["attention"],
            "embedding_rms": one["embedding_rms"],
            "position_parameters": one["position_parameters"],
            "parameters": one["parameters"],
            "tokens_per_second": statistics.median(run["tokens_per_second"] for run in measured),
            "decode_tokens_per_second": statistics.median(run["decode_tokens_per_second"] for run in measured),
        }
    tested = {v: row["difference"]["p"] for v, row in summary.items() if v != baseline}
    corrected = holm({variant: p for variant, p in tested.items() if p is not None})
    for variant, row in summary.items():
        row["difference"]["p_holm"] = corrected.get(variant)
    return summary


def _by_seed(measured: list[dict], key: str) -> dict[int, float]:
    return {run["seed"]: run[key] for run in measured}


def _evaluations(measured: list[dict]) -> dict[str, list[dict]]:
    """What is asked of a model with its own position options, and with others."""
    return {key: _over_seeds(measured, key) for key in ("loss_by_context", "loss_by_position", "exact_match")}


def _over_seeds(measured: list[dict], key: str) -> list[dict]:
    """Points {x, mean, sd, low, high} at the x that all runs have; low and high are the extremes of the seeds.

    mean, sd, low and high are None where a run has no value.
    """
    curves = [dict(map(tuple, run[key] or ())) for run in measured]
    points = []
    for x in curves[0]:
        values = [curve.get(x, ...) for curve in curves]
        if ... in values:
            continue
        ends = (None, None) if None in values else (min(values), max(values))
        points.append({"x": x, **mean_and_spread(values), "low": ends[0], "high": ends[1]})
    return points


def _differences(measured: list[dict], baseline: list[dict]) -> list[dict]:
    """`paired` differences of the validation loss at each number of tokens x that all runs have."""
    curves, others = ({run["seed"]: dict(map(tuple, run["curve"])) for run in some} for some in (measured, baseline))
    common = set.intersection(*({*curve} for curve in (*curves.values(), *others.values())))
    return [
        {"x": x, **paired(*({seed: curve[x] for seed, curve in some.items()} for some in (curves, others)))}
        for x in sorted(common)
    ]
