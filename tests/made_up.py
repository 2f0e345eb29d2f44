"""Results of comparisons that nobody trained, for losses that are known."""

from comparison.results import best_rate, summarize, sweep


def run(seed: int, loss: float, rate: float = 0.001, tokens: int = 4000, **changes) -> dict:
    """What `read_run` and `measure` say of a run that ends at this loss, after one twice as far from 1 before."""
    return {
        "folder": f"runs/{seed}-{loss}", "seed": seed, "learning_rate": rate, "tokens": tokens, "val_loss": loss,
        "val_bits_per_byte": loss / 2, "curve": [[tokens // 2, 2 * loss - 1], [tokens, loss]],
        "grad_norm": [[tokens // 2, 1.5], [tokens, 0.5]], "theta_drift": None, "theta_drift_by_pair": None,
        "tokens_per_second": 1e3, "decode_tokens_per_second": 2e2, "position_parameters": 0, "parameters": 5000,
        "loss_by_context": [[16, loss], [32, loss + 0.5], [64, None]],
        "loss_by_position": [[8, loss + 1], [16, loss]], "exact_match": None, "evaluated_with": {},
        "corpus": {}, "config": {}, "diverged": None,
        "attention": {
            "distances": [[0, 0], [1, 1], [2, 3]],
            "mass": [[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]],
            "largest_logit": [[3.0, 4.0]],
        },
        "embedding_rms": {when: {"tokens": 0.02, "position": None} for when in ("start", "end")},
        **changes,
    }  # fmt: skip


def diverged(seed: int, rate: float = 0.001) -> dict:
    """What `read_run` says of a run that diverged."""
    said = f"step 5: loss nan, gradient's norm nan at train.learning_rate {rate:.2g}"
    return {"folder": f"runs/{seed}-{rate}", "seed": seed, "learning_rate": rate, "config": {}, "diverged": said}


def results(runs: dict[str, list[dict]], baseline: str, **changes) -> dict:
    """What `gather` makes of runs."""
    chosen = {variant: best for variant, some in runs.items() if (best := best_rate(some))}
    lost = {variant: some for variant, all in runs.items() if (some := [run for run in all if run["diverged"]])}
    return {
        "name": "made-up", "baseline": baseline, "unit": "nats per token", "context": 16, "tokens": [4000],
        "trained_length": 4,
        "corpus": {"source": "a <text>", "hash": "abc", "train_bytes": 1000, "val_bytes": 100}, "notes": [],
        "optimizer": "adamw", "versions": {"python": "3"},
        "hardware": {"device": "a machine", "cores": 2, "threads": 1},
        "differing": {variant: {"model.position.scheme": variant} for variant in runs},
        "sweep": {variant: sweep(some) for variant, some in runs.items()},
        "summary": summarize(chosen, baseline), "runs": chosen, "diverged": lost, **changes,
    }  # fmt: skip


def trial(random, differences: dict[str, float], seeds=5, noise=0.02, between_seeds=0.3) -> dict[str, list[dict]]:
    """Made-up runs whose losses share what their seed brings, and differ from the baseline's by what is given."""
    shared = [3 + random.gauss(0, between_seeds) for _ in range(seeds)]
    return {
        variant: [run(seed, shared[seed] + difference + random.gauss(0, noise)) for seed in range(seeds)]
        for variant, difference in {"base": 0.0, **differences}.items()
    }
