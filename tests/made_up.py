"""Results of comparisons that nobody trained, for losses that are known."""

from dataclasses import replace

from comparison.results import Attention, EmbeddingRms, LoggedRun, MeasuredRun, Results, Run
from comparison.summary import summarize, sweep

RMS = EmbeddingRms(0.02, None)


def run(seed: int, loss: float, rate: float = 0.001, tokens: int = 4000, **changes) -> MeasuredRun:
    """A run that ends at this loss, after one twice as far from 1 before."""
    made = MeasuredRun(
        folder=f"runs/{seed}-{loss}", seed=seed, learning_rate=rate, diverged=None, config={}, corpus={}, versions={},
        tokens=tokens, val_loss=loss, val_bits_per_byte=loss / 2, curve=[(tokens // 2, 2 * loss - 1), (tokens, loss)],
        grad_norm=[(tokens // 2, 1.5), (tokens, 0.5)], scheme_metrics={},
        loss_by_context=[(16, loss), (32, loss + 0.5), (64, None)], loss_by_position=[(8, loss + 1), (16, loss)],
        exact_match=None, evaluated_with={}, embedding_rms={"start": RMS, "end": RMS},
        attention=Attention([(0, 0), (1, 1), (2, 3)], [[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]], [[3.0, 4.0]]),
        position_parameters=0, parameters=5000,
    )  # fmt: skip
    return replace(made, **changes)


def diverged(seed: int, rate: float = 0.001) -> Run:
    said = f"step 5: loss nan, gradient's norm nan at train.learning_rate {rate:.2g}"
    return Run(f"runs/{seed}-{rate}", seed, rate, said, {})


def results(
    runs: dict[str, list[Run | LoggedRun]],
    baseline: str,
    notes: tuple[str, ...] = (),
    tuning: dict[str, list[Run | LoggedRun]] | None = None,
    apart: dict[str, str] | None = None,
    **changes,
) -> Results:
    """What a comparison of the runs of each variant gives."""
    tuning, apart = tuning or {}, apart or {}
    chosen = {variant: good for variant, some in runs.items() if (good := [run for run in some if not run.diverged])}
    lost = {variant: some for variant, every in runs.items() if (some := [run for run in every if run.diverged])}
    made = Results(
        name="made-up", baseline=baseline, unit="nats per token", context=16, vocab_size=300, margin=0.02,
        trained_length=4, tokens=[4000], notes=list(notes), optimizer="adamw", versions={"python": "3"},
        corpus={"source": "a <text>", "hash": "abc", "train_bytes": 1000, "val_bytes": 100},
        hardware={"device": "a machine", "cores": 2, "threads": 1},
        differing={variant: {"model.position.scheme": variant} for variant in runs},
        tuning_seeds=sorted({run.seed for some in tuning.values() for run in some}),
        sweep={variant: sweep(tuning.get(variant, some)) for variant, some in runs.items()}, widened=[], at_edge=[],
        summary=summarize(chosen, baseline, 0.02, apart), runs=chosen, tuning=tuning, cost={}, diverged=lost,
    )  # fmt: skip
    return replace(made, **changes)


def trial(random, differences: dict[str, float], seeds=5, noise=0.02, between_seeds=0.3) -> dict[str, list[Run]]:
    """Made-up runs whose losses share what their seed brings, and differ from the baseline's by what is given."""
    shared = [3 + random.gauss(0, between_seeds) for _ in range(seeds)]
    return {
        variant: [run(seed, shared[seed] + difference + random.gauss(0, noise)) for seed in range(seeds)]
        for variant, difference in {"base": 0.0, **differences}.items()
    }
