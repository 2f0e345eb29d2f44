"""From finished runs to the numbers of a comparison."""

import math
import statistics
from collections.abc import Mapping

import numpy as np

from configs import Config
from model.checkpoint import find_checkpoint, load_checkpoint
from training.evaluation import loss_by_context
from training.run import RunFolder

MULTIPLES = (1, 2, 4, 8)  # of the trained context


def measure_run(config: Config, val: np.ndarray) -> dict:
    """The numbers of one finished run: losses in nats per token (None: not to be had), tokens/s, parameters."""
    run = RunFolder(config, resume=True)
    rows, model = run.metrics(), load_checkpoint(find_checkpoint(run.path))
    evaluations = [row for row in rows if "val_loss" in row]
    by_context = loss_by_context(model, val, model.config.max_position_embeddings, MULTIPLES)
    return {
        "val_loss": evaluations[-1]["val_loss"],
        "val_bits_per_byte": evaluations[-1]["val_bits_per_byte"],
        "loss_by_context": {
            f"{multiple}x": None if math.isnan(loss) else loss for multiple, loss in zip(MULTIPLES, by_context)
        },
        "position_parameters": sum(parameter.numel() for parameter in model.position.parameters()),
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in rows if "train_loss" in row),
        "curve": [[row["tokens"], row["val_loss"]] for row in evaluations],
    }


def summarize(runs: Mapping[str, list[dict]], baseline: str) -> dict[str, dict]:
    """Per variant: mean and standard deviation over seeds, and the differences to the baseline paired by seed.

    runs: for each variant the `measure_run` of its seeds, in the same order of seeds for all.
    """
    summary = {}
    for variant, measured in runs.items():
        differences = [run["val_loss"] - base["val_loss"] for run, base in zip(measured, runs[baseline])]
        summary[variant] = {
            "val_loss": mean_and_spread([run["val_loss"] for run in measured]),
            "val_bits_per_byte": mean_and_spread([run["val_bits_per_byte"] for run in measured]),
            "difference": mean_and_spread(differences),
            "loss_by_context": {
                key: mean_and_spread([run["loss_by_context"][key] for run in measured])
                for key in measured[0]["loss_by_context"]
            },
            "position_parameters": measured[0]["position_parameters"],
            "tokens_per_second": statistics.median(run["tokens_per_second"] for run in measured),
        }
    return summary


def mean_and_spread(values: list[float | None]) -> dict:
    """Mean and sample standard deviation; None for the spread of a single value, and for both where one is missing."""
    if None in values:
        return {"mean": None, "sd": None}
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}
