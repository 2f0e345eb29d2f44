"""From a finished run to its numbers: those it logged, and those of its model, which are kept in the run's folder."""

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from base import InputError, read_json, reading, replace_text, writing
from comparison.design import rejection
from comparison.diagnostics import attention_by_distance, embedding_rms, exact_match, parts_answers
from comparison.losses import losses_by_length
from comparison.results import LoggedRun, MeasuredRun, Run, SchemeMetric
from data.config import DataConfig
from data.corpus import Corpus, load_corpus
from data.synthetic import scored_lengths, task_of
from model.checkpoint import WEIGHTS, load_checkpoint
from model.config import ModelConfig
from model.device import pick_device
from model.position import POSITIONS
from model.transformer import Transformer, with_position
from settings import one_line
from training.run import RunFolder, trained_keys
from training.starting import first_model

VERSION = 2  # raise it when the same model gives other numbers
REMEDY = "remove the file, and all is measured again"


def read_run(run: RunFolder) -> Run | LoggedRun:
    """What a run logged, losses in nats per token; a Run where it diverged."""
    seed, learning_rate, config = run.config.seed, run.config.train.learning_rate, run.config.model_dump(mode="json")
    described = Run(str(run.path), seed, learning_rate, run.divergence(), config)
    if described.diverged:
        return described
    rows, metrics = run.metrics(), POSITIONS[run.config.model.position.scheme].measured
    evaluations, steps = ([row for row in rows if key in row] for key in ("val_loss", "train_loss"))
    return LoggedRun(
        **vars(described),
        **{key: evaluations[-1][key] for key in ("tokens", "val_loss", "val_bits_per_byte")},
        curve=[(row["tokens"], row["val_loss"]) for row in evaluations],
        grad_norm=[(row["tokens"], row["grad_norm"]) for row in steps if row.get("grad_norm")],
        scheme_metrics={name: _scheme_metric(name, words, steps) for name, words in metrics.items()},
        corpus=run.corpus(),
        versions=run.known_versions(),
    )


def _scheme_metric(name: str, words: str, rows: list[dict]) -> SchemeMetric:
    logged = [(row["tokens"], entries) for row in rows if (entries := _entries(row.get(name)))]
    at_end = list(enumerate(logged[-1][1])) if logged else []
    return SchemeMetric(words, [(tokens, max(entries)) for tokens, entries in logged], at_end)


def _entries(value: float | list[float] | list[list[float]] | None) -> list[float]:
    """A number as one entry, a list as it is, of a list per layer the means over layers; none if one is not finite."""
    entries = value if isinstance(value, list) else [value]
    if entries and isinstance(entries[0], list):
        entries = [statistics.fmean(layers) for layers in zip(*entries)]
    return entries if all(isinstance(each, int | float) and math.isfinite(each) for each in entries) else []


def measure(
    run: RunFolder, logged: LoggedRun, corpus_of: Callable, evaluate_with: dict[str, dict], context: int
) -> MeasuredRun:
    """The logged numbers of a finished run, and those measured of its model, which measurements.json keeps.

    corpus_of: the Corpus of a run; called only for what isn't kept yet. evaluate_with: name and other position options
    under which the same model is evaluated once more, where its scheme takes them. context: of the comparison, in
    tokens: losses are measured at multiples of it, whatever this run was trained with.
    """
    checkpoint, file = run.checkpoint(run.config.train.steps), run.path / "measurements.json"
    if not (checkpoint / WEIGHTS).is_file():
        raise InputError(f"{checkpoint / WEIGHTS}: missing; the run cannot be measured without it")
    with (checkpoint / WEIGHTS).open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    depends_on = [VERSION, context, digest, read_json(checkpoint / "config.json"), run.corpus()]
    kept = read_kept(file)

    def remembered(name: str, options: dict, compute: Callable[[Transformer, Corpus], dict]) -> dict:
        key = hashlib.sha256(json.dumps([*depends_on, options]).encode()).hexdigest()
        entry = kept.get(name)
        if not isinstance(entry, dict) or entry.get("key") != key or not isinstance(entry.get("numbers"), dict):
            print(f"measuring {run.path}: {name}", file=sys.stderr)
            model = load_checkpoint(checkpoint).to(pick_device("auto"))
            numbers = compute(with_position(model, options) if options else model, corpus_of(run))
            kept[name] = {"key": key, "numbers": numbers}
            try:
                with writing(file):
                    replace_text(file, json.dumps(kept, default=asdict))
            except InputError as error:  # as in the folder of somebody else
                print(f"warning: {error}; the next report measures again", file=sys.stderr)
        return kept[name]["numbers"]

    start, packed = (run.config.train.init_from, run.config.model, run.config.seed), run.config.data.pack
    numbers = remembered("model", {}, partial(_measure_all, context=context, packed=packed, start=start))
    model = run.config.trained_model
    others = {name: options for name, options in evaluate_with.items() if not rejection(model, options)}
    evaluate = partial(_evaluate, context=context, packed=packed)
    others = {name: remembered(f"with {name}", options, evaluate) for name, options in others.items()}
    try:
        return TypeAdapter(MeasuredRun).validate_python({**vars(logged), **numbers, "evaluated_with": others})
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}; {REMEDY}") from None


@reading()
def read_kept(file: Path) -> dict:
    """What was measured before, {} where there is no such file. InputError where it is cut short or no mapping."""
    try:
        return read_json(file) if file.is_file() else {}
    except InputError as error:
        raise InputError(f"{error}; {REMEDY}") from None


def _evaluate(model: Transformer, corpus: Corpus, context: int, packed: bool) -> dict:
    # without packing no window has more than one example
    by_context, by_position = losses_by_length(model, corpus.val, context) if packed else (None, None)
    task, shares = task_of(corpus.source), None
    if task and parts_answers(corpus.tokenizer, task):
        shares = exact_match(model, corpus.tokenizer, corpus.end_of_text, task, scored_lengths(task))
    return {
        "loss_by_context": by_context,
        "loss_by_position": by_position,
        "exact_match": shares and list(shares.items()),
    }


def _measure_all(
    model: Transformer, corpus: Corpus, context: int, packed: bool, start: tuple[str | None, ModelConfig, int]
) -> dict:
    trained, sizes = model.config.max_position_embeddings, {"end": embedding_rms(model)}
    with suppress(InputError):  # the folder that training began from may be gone
        sizes["start"] = embedding_rms(first_model(*start))
    return _evaluate(model, corpus, context, packed) | {
        "attention": attention_by_distance(model, corpus.val, trained) if packed else None,
        "embedding_rms": sizes,
        "position_parameters": sum(parameter.numel() for parameter in model.position.parameters()),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


class Corpora:
    """The corpora of runs, one of each hash kept, also where its text has moved between runs."""

    def __init__(self):
        self.loaded: dict[str, Corpus] = {}

    def load(self, config: DataConfig, found: DataConfig | None = None) -> Corpus:
        """The corpus of a config, kept for the runs on it. found: the same, where its tokenizer is now."""
        corpus = load_corpus(found or config)
        return self.loaded.setdefault(_key(config, corpus.hash), corpus)

    def of(self, run: RunFolder) -> Corpus:
        """The corpus of a run; InputError where it is no longer the text of the run."""
        corpus = self.loaded.get(_key(run.config.data, run.corpus()["hash"])) or self.load(run.config.data, run.data())
        run.check_same_experiment(corpus)
        return corpus


def _key(config, text):
    return json.dumps([text, trained_keys({"data": config.model_dump(mode="json")})])
