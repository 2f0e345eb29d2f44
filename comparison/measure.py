"""From a finished run to its numbers: those it logged, and those of its model, which are kept in the run's folder."""

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from base import InputError
from comparison.design import with_options
from configs import load_config
from data.corpus import Corpus
from data.synthetic import scored_lengths, task_of
from model.checkpoint import WEIGHTS, load_checkpoint, read_json
from model.device import pick_device
from model.transformer import Transformer, with_position
from training.diagnostics import attention_by_distance, decode_speed, embedding_rms, exact_match
from training.evaluation import loss_by_context, loss_by_position
from training.run import RunFolder, replace_text

MULTIPLES = (1, 2, 4, 8)  # of the trained context
VERSION = 1  # raise it when the same model gives other numbers


def open_run(folder: Path) -> RunFolder:
    """The run in a folder, wherever it was made; InputError where it holds none or one that can still go on."""
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder}: is not a run, it has no config.yaml")
    place = {"runs_dir": str(folder.parent), "name": folder.name}
    run = RunFolder(load_config(folder / "config.yaml").model_copy(update=place), resume=True)
    if not (run.is_finished() or run.divergence()):
        raise InputError(f"{folder}: is not finished, train.py with --resume goes on with it")
    return run


def read_run(run: RunFolder) -> dict:
    """What a run logged: losses in nats per token, curves as [tokens, value] pairs.

    diverged is None, or says what was no longer finite: then there is nothing but the run's folder, seed, learning
    rate and config. theta_drift is the largest |Δ log θ| of all pairs, theta_drift_by_pair that of each at the end (a
    mean over layers where each has its own); both are None for a scheme that trains no θ.
    """
    config = run.config
    described = {
        "folder": str(run.path),
        "seed": config.seed,
        "learning_rate": config.train.learning_rate,
        "diverged": run.divergence(),
        "config": config.model_dump(mode="json"),
    }
    if described["diverged"]:
        return described
    rows = run.metrics()
    evaluations = [row for row in rows if "val_loss" in row]
    steps = [row for row in rows if "train_loss" in row]
    drift = [[row["tokens"], _pairs(row["theta_drift"])] for row in steps if "theta_drift" in row]
    return {
        **described,
        "tokens": evaluations[-1]["tokens"],
        "val_loss": evaluations[-1]["val_loss"],
        "val_bits_per_byte": evaluations[-1]["val_bits_per_byte"],
        "curve": [[row["tokens"], row["val_loss"]] for row in evaluations],
        "grad_norm": [[row["tokens"], row["grad_norm"]] for row in steps if row.get("grad_norm")],
        "theta_drift": [[tokens, max(pairs)] for tokens, pairs in drift] or None,
        "theta_drift_by_pair": [[i, value] for i, value in enumerate(drift[-1][1])] if drift else None,
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in steps),
        "corpus": run.corpus(),
    }


def _pairs(drift: list) -> list[float]:
    return [statistics.fmean(layers) for layers in zip(*drift)] if isinstance(drift[0], list) else drift


def measure(run: RunFolder, corpus_of: Callable[[RunFolder], Corpus], evaluate_with: dict[str, dict[str, Any]]) -> dict:
    """What a finished run's model says: losses by context and position, attention, exact match, parameters, speed.

    evaluate_with: name and other position options under which the same model is evaluated once more, where its
    scheme takes them. measurements.json in the run's folder keeps it all; corpus_of is called for the rest alone.
    """
    checkpoint, file = run.checkpoint(run.config.train.steps), run.path / "measurements.json"
    with (checkpoint / WEIGHTS).open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    depends_on = [VERSION, MULTIPLES, digest, read_json(checkpoint / "config.json"), run.corpus()]
    kept = read_json(file) if file.is_file() else {}

    def remembered(name: str, options: dict, compute: Callable[[Any, Corpus], dict]) -> dict:
        key = hashlib.sha256(json.dumps([*depends_on, options]).encode()).hexdigest()
        if kept.get(name, {}).get("key") != key:
            print(f"measuring {run.path}: {name}", file=sys.stderr)
            model = load_checkpoint(checkpoint).to(pick_device("auto"))
            numbers = compute(with_position(model, options) if options else model, corpus_of(run))
            kept[name] = json.loads(json.dumps({"key": key, "numbers": numbers}))  # the same now and when read again
            replace_text(file, json.dumps(kept))
        return kept[name]["numbers"]

    def everything(model, corpus):
        return _evaluate(model, corpus) | _look_inside(model, corpus, run.config.seed)

    others = {n: o for n, o in evaluate_with.items() if not isinstance(with_options(run.config.model, o), str)}
    return {
        **remembered("model", {}, everything),
        "evaluated_with": {name: remembered(f"with {name}", options, _evaluate) for name, options in others.items()},
    }


def _evaluate(model, corpus: Corpus) -> dict:
    context, task = model.config.max_position_embeddings, task_of(corpus.source)
    by_context = zip(MULTIPLES, loss_by_context(model, corpus.val, context, MULTIPLES))
    longest = max((multiple for multiple in MULTIPLES if multiple * context < len(corpus.val)), default=1)
    by_position = loss_by_position(model, corpus.val, context, longest)
    shares = exact_match(model, corpus.tokenizer, task, scored_lengths(task)).items() if task else None
    return {
        "loss_by_context": [[multiple * context, _number(loss)] for multiple, loss in by_context],
        "loss_by_position": [[position, _number(loss)] for position, loss in by_position],
        "exact_match": shares and [list(share) for share in shares],
    }


def _look_inside(model, corpus: Corpus, seed: int) -> dict:
    return {
        "attention": attention_by_distance(model, corpus.val, model.config.max_position_embeddings),
        "embedding_rms": {"start": embedding_rms(Transformer(model.config, seed)), "end": embedding_rms(model)},
        "decode_tokens_per_second": decode_speed(model),
        "position_parameters": sum(parameter.numel() for parameter in model.position.parameters()),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
