"""Which learning rates a variant is tried with: those given and, where the best is at their edge, others beyond."""

from base import InputError
from comparison.design import Comparison, PlannedRun
from comparison.grouping import open_run
from comparison.measure import read_run
from comparison.results import Run
from comparison.summary import best_rate, sweep
from training.run import RunFolder

WIDENINGS = 3  # rates beyond those given, for each variant


def tuning_runs(comparison: Comparison, variant: str) -> list[PlannedRun]:
    """A variant's runs that choose its learning rate, as far as those that have finished tell; none where it is given."""
    rates = sorted(comparison.config.learning_rates)
    for _ in range(WIDENINGS if rates else 0):
        logged = logged_runs(comparison.runs_at_rates(variant, rates))
        further = None if None in logged else rate_beyond(rates, best_rate(sweep(logged)))
        if further is None or not _can_be(comparison, variant, further):
            break
        rates = sorted([*rates, further])
    return comparison.runs_at_rates(variant, rates)


def _can_be(comparison: Comparison, variant: str, rate: float) -> bool:
    """Whether a rate that nobody gave can be one: not below the config's min_learning_rate, nor 0 or infinite."""
    try:
        comparison.runs_at_rates(variant, [rate])
    except InputError:
        return False
    return True


def rate_beyond(rates: list[float], best: float | None) -> float | None:
    """Where the best of the rates, lowest first, is at an edge: the rate beyond it by the ratio of the last two there,
    to three digits; None where that is one of them. best: None where all runs diverged, which asks for a lower one.
    """
    if best in (None, rates[0]):
        edge, inner = rates[:2]
    elif best == rates[-1]:
        inner, edge = rates[-2:]
    else:
        return None
    beyond = float(f"{edge * (edge / inner):.3g}")
    return None if beyond in rates else beyond


def reported_runs(comparison: Comparison, variant: str) -> list[PlannedRun]:
    """A variant's runs at the learning rate that its tuning runs, all finished, chose; none where all of them diverged."""
    tuned = logged_runs(tuning_runs(comparison, variant))
    rate = best_rate(sweep(tuned))
    return [] if tuned and rate is None else comparison.runs_at_rate(variant, rate)


def next_runs(comparison: Comparison) -> list[PlannedRun]:
    """The runs that can be made now: those that choose learning rates until all are chosen, then those reported."""
    variants = comparison.config.variants
    tuning = [run for variant in variants for run in tuning_runs(comparison, variant)]
    if None in logged_runs(tuning):
        return tuning
    return [run for variant in variants for run in reported_runs(comparison, variant)]


def logged_runs(runs: list[PlannedRun]) -> list[Run | None]:
    """What each run logged, or that it diverged; None where it has not finished. InputError where the folder of one has
    a run with other settings.
    """
    found = []
    for planned in runs:
        run = RunFolder(planned.config, resume=True) if RunFolder.exists(planned.config) else None
        if run and (keys := ", ".join(run.differing_keys())):
            raise InputError(f"{run.path}: was made with other values of {keys}; remove it or use another name")
        done = run and (run.is_finished() or run.divergence())
        found.append(read_run(open_run(run.path)) if done else None)
    return found
