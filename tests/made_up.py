"""Results of comparisons that nobody trained, for losses that are known."""

from dataclasses import replace

from comparison.results import Attention, EmbeddingRms, LoggedRun, MeasuredRun, Results, Run
from comparison.summary import best_rate, summarize, sweep

RMS = EmbeddingRms(0.02, None)


def run(seed: int, loss: float, rate: float = 0.001, tokens: int = 4000, **changes) -> MeasuredRun:
    """A run that ends at this loss, after one twice as far from 1 before."""
    made = MeasuredRun(
        folder=f"runs/{seed}-{loss}", seed=seed, learning_rate=rate, diverged=None, config={}, corpus={},
        tokens=tokens, val_loss=loss, val_bits_per_byte=loss / 2, curve=[(tokens // 2, 2 * loss - 1), (tokens, loss)],
        grad_norm=[(tokens // 2, 1.5), (tokens, 0.5)], scheme_metrics={}, tokens_per_second=1e3,
        loss_by_context=[(16, loss), (32, loss + 0.5), (64, None)], loss_by_position=[(8, loss + 1), (16, loss)],
        exact_match=None, evaluated_with={}, embedding_rms={"start": RMS, "end": RMS},
        attention=Attention([(0, 0), (1, 1), (2, 3)], [[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]], [[3.0, 4.0]]),
        decode_tokens_per_second=2e2, position_parameters=0, parameters=5000,
    )  # fmt: skip
    return replace(made, **changes)


def diverged(seed: int, rate: float = 0.001) -> Run:
    said = f"step 5: loss nan, gradient's norm nan at train.learning_rate {rate:.2g}"
    return Run(f"runs/{seed}-{rate}", seed, rate, said, {})


def results(runs: dict[str, list[Run | LoggedRun]], baseline: str, notes: tuple[str, ...] = ()) -> Results:
    """What a comparison of the runs of each variant gives."""
    chosen = {variant: best for variant, some in runs.items() if (best := best_rate(some))}
    lost = {variant: some for variant, every in runs.items() if (some := [run for run in every if run.diverged])}
    return Results(
        name="made-up", baseline=baseline, unit="nats per token", context=16, trained_length=4, tokens=[4000],
        notes=list(notes), optimizer="adamw", versions={"python": "3"},
        corpus={"source": "a <text>", "hash": "abc", "train_bytes": 1000, "val_bytes": 100},
        hardware={"device": "a machine", "cores": 2, "threads": 1},
        differing={variant: {"model.position.scheme": variant} for variant in runs},
        sweep={variant: sweep(some) for variant, some in runs.items()},
        summary=summarize(chosen, baseline), runs=chosen, unused_learning_rates={}, diverged=lost,
    )  # fmt: skip


def trial(random, differences: dict[str, float], seeds=5, noise=0.02, between_seeds=0.3) -> dict[str, list[Run]]:
    """Made-up runs whose losses share what their seed brings, and differ from the baseline's by what is given."""
    shared = [3 + random.gauss(0, between_seeds) for _ in range(seeds)]
    return {
        variant: [run(seed, shared[seed] + difference + random.gauss(0, noise)) for seed in range(seeds)]
        for variant, difference in {"base": 0.0, **differences}.items()
    }
