"""The training loop: `train`, and what it calls in the order in which it calls it."""

import math
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from tqdm import tqdm

from base import InputError
from configs import Config, TrainConfig, load_config
from data.batches import Batches
from data.corpus import Corpus, load_corpus
from data.tokenizer import text_ids
from model.checkpoint import TRAINER, load_checkpoint, load_trainer, save_checkpoint
from model.device import autocast, is_out_of_memory, pick_device
from model.transformer import Transformer
from training.alone import Alone
from training.evaluation import bits_per_byte, evaluate
from training.facts import duration, opening
from training.machine import compile_where_possible, explain_out_of_memory, pick_engine, using_threads
from training.optimizer import build_optimizer, rebuild_optimizer, restore_optimizer
from training.run import ReadRunFolder, RunFolder
from training.schedule import learning_rate
from training.starting import fill_in_model, first_model, text_config
from training.step import StepResult, optimizer_step
from training.stopping import signals_received
from training.tracking import tracking

SECONDS_BETWEEN_LINES = 60  # of progress, where there is no terminal for a bar


def train(config: Config, resume: bool = False, overwrite: bool = False, tell: bool = True) -> dict:
    """Trains to config.train.steps and returns the last evaluation row: step, tokens, val_loss, val_bits_per_byte.

    tell: whether to print what is known at the start. Writes the run folder. Batch i depends only on config.seed and i, so a resumed run continues where it stopped.
    On SIGINT or SIGTERM it finishes the step, or breaks off the evaluation, writes a checkpoint and ends the program
    with status 130 or 143. Raises InputError before writing anything if config, corpus and folder do not fit together,
    and later if loss, gradient or evaluation is not finite, or if the disk or the device's memory is full.
    """
    engine = pick_engine(config.train)
    kind = ReadRunFolder if engine.rank else RunFolder
    run = kind(config, resume, overwrite)  # rejects a taken folder before the corpus is read
    data = text_config(config.data, run.newest_checkpoint() if resume else None)
    corpus = load_corpus(data) if not engine.rank else None
    engine.from_first(None)
    corpus = corpus or load_corpus(data)  # which rank 0 has prepared
    run.config = fill_in_threads(fit_to_corpus(config, corpus), run)
    device = pick_device(config.train.device)
    alone = engine.size == 1
    with run.locked(), signals_received(alone) as signals, using_threads(run.config.train.threads):
        trainer = make_trainer(run, corpus, device, signals, engine)
        if tell:
            parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
            tokens = trainer.batches.targets(config.train.steps)
            print(*opening(run.config, corpus, parameters, device, tokens), sep="\n", file=sys.stderr)
        trainer.train()
    return engine.from_first([row for row in run.metrics() if "val_loss" in row][-1:])[0]


def fit_to_corpus(config: Config, corpus: Corpus) -> Config:
    """The config with the model of train.init_from and the vocabulary size filled in; InputError if a source's split is shorter than one context."""
    config = fill_in_model(config)
    needed, model = config.model.max_position_embeddings + 1, config.model
    for part in corpus.parts:
        if min(len(part.train), len(part.val)) < needed:
            raise InputError(
                f"data.source: {part.source} has {len(part.train)} tokens for training and {len(part.val)} "
                f"for validation; each needs model.max_position_embeddings + 1 = {needed}"
            )
    vocab_size = 1 + max(text_ids(corpus.tokenizer, corpus.end_of_text))
    if model.vocab_size is not None and model.vocab_size < vocab_size:
        raise InputError(f"model.vocab_size: expected at least the tokenizer's {vocab_size}, got {model.vocab_size}")
    return config.model_copy(update={"model": model.model_copy(update={"vocab_size": model.vocab_size or vocab_size})})


def fill_in_threads(config: Config, run: RunFolder) -> Config:
    """The config with the number of threads filled in: that of the run being resumed, else PyTorch's own."""
    before = load_config(run.path / "config.yaml").train.threads if run.resume else None
    threads = config.train.threads or before or torch.get_num_threads()
    return config.model_copy(update={"train": config.train.model_copy(update={"threads": threads})})


def make_trainer(run: RunFolder, corpus: Corpus, device: torch.device, signals: list[int], engine: Alone) -> "Trainer":
    """The trainer of a new run, in a fresh folder, or of a resumed one, as of its newest checkpoint if it has any."""
    if run.resume:
        run.check_same_experiment(corpus)
    checkpoint = run.newest_checkpoint() if run.resume else None
    model, config, init_from = None, run.config.model, run.config.train.init_from
    if run.config.train.document_mask:  # in the model's config, as whoever evaluates it later needs it too
        config = config.model_copy(update={"document_start_token_id": corpus.end_of_text})
    try:
        if engine.needs_weights:
            model = load_checkpoint(checkpoint) if checkpoint else first_model(init_from, config, run.config.seed)
        model = engine.place(model, device)
    except RuntimeError as error:
        if engine.size > 1 and not is_out_of_memory(error):  # another process may have ended
            raise
        raise InputError(f"model: a tensor does not fit into memory ({str(error):.100})") from None
    trainer = Trainer(run, corpus, model, build_optimizer(model, run.config.train, engine), signals, engine)
    if checkpoint:
        trainer.restore(checkpoint)
    if trainer.step > (steps := run.config.train.steps):
        raise InputError(f"train.steps: expected at least the {trainer.step} that {run.path} has done, got {steps}")
    trainer.check_position()
    if run.resume:
        run.describe(corpus, trainer.step)
        run.drop_rows_after(trainer.step)
    else:
        run.start(corpus)
    return trainer


@dataclass
class Trainer:
    """A run in training: what it needs, and how far it is."""

    run: RunFolder
    corpus: Corpus
    model: Transformer
    optimizer: torch.optim.Optimizer
    signals: list[int]  # received so far
    engine: Alone
    step: int = 0  # in progress, or the last one done
    skipped: int = 0  # steps skipped so far
    saved: int = 0  # step of the newest checkpoint
    busy_seconds: float = 0.0  # in steps, since the last training row
    busy_steps: int = 0
    next_line: float = 0.0  # when to print progress again, as time.monotonic()
    shown: dict[str, str] = field(default_factory=dict)  # the progress in words
    settings: TrainConfig = field(init=False)
    context: int = field(init=False)
    end_of_text: int | None = field(init=False)  # None: documents are packed
    device: torch.device = field(init=False)
    batches: Batches = field(init=False)
    bar: tqdm = field(init=False)
    track: Callable[[dict], None] = field(init=False)  # sends a metrics row to wandb, if the config asks for it

    def __post_init__(self):
        self.settings, self.context = self.run.config.train, self.run.config.model.max_position_embeddings
        self.device = self.model.output_weight.device
        self.model.recompute = self.settings.recompute
        packed = self.run.config.data.pack
        self.end_of_text = None if packed else self.corpus.end_of_text
        drawn = self.context, self.settings.batch_size, self.run.config.seed
        parts = self.corpus.parts
        self.batches = Batches([p.train for p in parts], *drawn, self.end_of_text, [p.weight for p in parts])

    def train(self) -> None:
        """Takes the remaining steps; logs, saves and evaluates when the config says so."""
        settings, name = self.settings, self.run.config.name
        if settings.compile:
            compile_where_possible(self.model, self.engine)
        steps = range(self.step + 1, settings.steps + 1)
        bar = tqdm(steps, name, settings.steps, initial=self.step, disable=None)  # None: no bar outside a terminal
        sent = tracking(self.run, self.step) if not self.engine.rank else nullcontext(lambda row: None)
        with bar as self.bar, sent as self.track:
            if self.step and self.ends_interval(settings.eval_every) and not self.run.is_evaluated(self.step):
                self.evaluate()  # the run ended after saving this step and before evaluating it
            self.run.prune()
            for step in self.bar:
                self.step = step
                if step == settings.position_steps + 1:
                    self.drop_position()
                result = self.take_step()
                if not result.is_finite:
                    self.skip_step(result)
                if self.ends_interval(settings.log_every) or not result.is_finite:
                    self.log_step(result)
                if self.ends_interval(settings.checkpoint_every):
                    self.save()
                if number := self.stopping():
                    self.stop(number)
                if self.ends_interval(settings.eval_every):
                    self.evaluate()

    def ends_interval(self, steps: int | None) -> bool:
        """Whether an interval of so many steps ends with this one; the last step of a run ends any, even None."""
        return self.step == self.settings.steps or (steps is not None and self.step % steps == 0)

    def check_position(self) -> None:
        """InputError if a resumed run dropped its scheme at another step than its config, with other steps, now says."""
        until, last = self.settings.position_until, self.settings.position_steps
        if until is None:
            return
        dropped = self.model.config.position.scheme == "none"
        if self.step < last if dropped else self.step > last:
            raise InputError(
                f"train.position_until: {until} of train.steps {self.settings.steps} drops the scheme after step {last}, "
                f"but at step {self.step} the run in {self.run.path} {'has already dropped it' if dropped else 'still has it'}"
            )

    def drop_position(self) -> None:
        """Continues without the positional scheme; the other weights keep their moments."""
        before, old = dict(self.model.named_parameters()), self.model
        self.model = self.engine.without_position(old)
        self.model.recompute = self.settings.recompute
        self.optimizer = rebuild_optimizer(self.optimizer, before, self.model, self.settings, self.engine)
        if self.settings.compile and self.model is not old:
            compile_where_possible(self.model, self.engine)

    def take_step(self) -> StepResult:
        """One update of the weights, on the batch of this step."""
        begun = time.perf_counter()
        rate = learning_rate(self.step, self.settings)
        batch = self.batches[self.step - 1]
        each = self.settings.batch_size // self.engine.size
        with explain_out_of_memory(self.device, self.settings.micro_batch_size, each):
            result = optimizer_step(self.model, self.optimizer, *batch, rate, self.settings, self.engine)
        self.busy_seconds, self.busy_steps = self.busy_seconds + time.perf_counter() - begun, self.busy_steps + 1
        return result

    @property
    def rate_key(self) -> str:
        """The key of the highest learning rate in this part of the training."""
        is_free = self.step > self.settings.position_steps and self.settings.position_free_learning_rate
        return f"train.{'position_free_' if is_free else ''}learning_rate"

    def skip_step(self, result: StepResult) -> None:
        """Counts a step that was not finite and so changed nothing; ends the run if it is one too many."""
        self.skipped += 1
        loss, norm, rate = result
        problem = f"step {self.step}: loss {loss:.4g}, gradient norm {norm:.4g} at {self.rate_key} {rate:.2g}"
        if self.skipped > self.settings.max_skipped_steps:
            self.end_as_diverged(problem)
        allowed = f"{self.skipped} of {self.settings.max_skipped_steps} allowed"
        tqdm.write(f"warning: {problem}; skipped, {allowed}", file=sys.stderr)

    def log_step(self, result: StepResult) -> None:
        """Logs a training row; loss and gradient norm are None unless both are finite."""
        speed = self.batches.targets(self.busy_steps) / self.busy_seconds
        left = duration((self.settings.steps - self.step) * self.busy_seconds / self.busy_steps)
        self.busy_seconds, self.busy_steps = 0.0, 0
        loss, norm, rate = result if result.is_finite else (None, None, result.learning_rate)
        row = {"train_loss": loss, "grad_norm": norm, "learning_rate": rate, "tokens_per_second": speed}
        measured = self.engine.whole_position(self.model).metrics()
        self.log({**row, **measured, **row})  # twice: first in the row, and not to be replaced
        self.show("steps", f"loss {result.loss:.3f}, lr {rate:.1e}, {speed:,.0f} tokens/s")
        if self.bar.disable and time.monotonic() >= self.next_line:
            progress = ", ".join([f"step {self.step} of {self.settings.steps}", *self.shown.values()])
            print(f"{self.run.config.name}: {progress}, {left} left", file=sys.stderr)
            self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def show(self, key: str, said: str) -> None:
        """Puts it into the progress, in place of what was there under this key."""
        self.shown[key] = said
        self.bar.set_postfix_str(", ".join(self.shown.values()))

    def log(self, numbers: dict) -> None:
        """Appends a row of this step to metrics.jsonl, and tracks it; its tokens are the targets so far, without padding."""
        row = {"step": self.step, "tokens": self.batches.targets(self.step), **numbers}
        self.run.log(row)
        self.track(row)

    def save(self) -> None:
        """Writes a checkpoint: the model, its tokenizer and what `restore` needs."""
        model, moments = self.engine.whole(self.model), self.engine.whole_state(self.optimizer.state_dict())
        state = {"step": self.step, "skipped": self.skipped, "optimizer": moments}
        if not self.engine.rank:
            save_checkpoint(self.run.checkpoint(self.step), model, self.corpus.files, state)
        self.engine.from_first(None)  # or, after a signal, others end meanwhile, and torchrun kills what is left
        self.saved = self.step
        if not self.ends_interval(self.settings.eval_every):  # else `evaluate` prunes, unless the weights are ruined
            self.run.prune()

    def restore(self, checkpoint: Path) -> None:
        """Takes optimizer, step and skipped steps from a checkpoint; InputError if they do not belong to this run."""
        state = load_trainer(checkpoint)
        try:
            restore_optimizer(self.optimizer, state.get("optimizer"), self.engine)
            self.step, self.skipped = (int(state.get(key, 0)) for key in ("step", "skipped"))
            self.saved = self.step
            if self.run.checkpoint(self.step) != checkpoint:
                raise ValueError(f"of step {self.step}")
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{checkpoint / TRAINER}: not the state of this run ({error})") from None

    def evaluate(self) -> None:
        """Logs the loss on the validation split, and of a mixture on each source's.

        Ends the run if the loss is not finite, or if a signal comes.
        """
        begun, nats, targets = time.time(), {}, {part.name: len(part.val) - 1 for part in self.corpus.parts}
        for part in self.corpus.parts:
            nats[part.name] = self.total_nats(part.val)
            if nats[part.name] is None:
                self.stop(self.stopping())
        total = sum(nats.values())
        loss, per_byte = total / sum(targets.values()), bits_per_byte(total, self.corpus.val_bytes)
        if not math.isfinite(loss):
            if self.saved == self.step:
                self.run.set_aside(self.run.checkpoint(self.step))
            rate = learning_rate(self.step, self.settings)
            self.end_as_diverged(f"step {self.step}: validation loss {loss:.4g} at {self.rate_key} {rate:.2g}")
        each = {f"val_loss/{name}": nats[name] / targets[name] for name in nats if len(nats) > 1}
        self.log({"val_loss": loss, "val_bits_per_byte": per_byte, **each})
        self.run.prune()
        self.show("evaluation", f"validation loss {loss:.3f}")
        if not self.bar.disable:  # the time left follows from the steps' alone
            self.bar.last_print_t += time.time() - begun

    def total_nats(self, tokens: np.ndarray) -> float | None:
        """What `training.evaluation.evaluate` gives for the current model; None if a signal came."""
        with autocast(self.settings.dtype, self.device), explain_out_of_memory(self.device, 1, 1):
            return evaluate(self.model, tokens, self.context, self.stopping, self.end_of_text, self.engine)

    def end_as_diverged(self, problem: str) -> NoReturn:
        """Ends the run with an InputError, and records the problem in metrics.jsonl.

        Sets aside the checkpoints whose weights were ruined already.
        """
        checkpoint = None
        if not self.engine.rank:
            while checkpoint := self.run.newest_checkpoint():
                if self.is_good(checkpoint):
                    break
                self.run.set_aside(checkpoint)
        self.log({"diverged": problem})
        checkpoint = self.engine.from_first(checkpoint)
        raise InputError(f"{problem}; the last good checkpoint is {checkpoint or 'none yet'}")

    def is_good(self, checkpoint: Path) -> bool:
        """Whether a checkpoint's loss on the first window of the validation split is finite."""
        model = load_checkpoint(checkpoint).to(self.device)  # perhaps with a scheme that was dropped since
        window = self.corpus.val[: self.context + 1]
        with autocast(self.settings.dtype, self.device):
            return math.isfinite(evaluate(model, window, self.context, end_of_text=self.end_of_text))

    def stopping(self) -> int:
        """The signal that is to end the run, the same in all processes; 0 if none came."""
        return self.engine.largest(next(iter(self.signals), 0))

    def stop(self, number: int) -> NoReturn:
        """Ends the program as this signal would, with a checkpoint, and prints how to continue."""
        if self.saved != self.step:
            self.save()
        self.bar.close()
        command = shlex.join(
            [str(Path(sys.argv[0]).with_name("train.py")), str(self.run.path / "config.yaml"), "--resume"]
        )
        command = f"{'python' if self.engine.size == 1 else 'torchrun …'} {command}"
        print(f"stopped after step {self.step} of {self.settings.steps}; to continue: {command}", file=sys.stderr)
        raise SystemExit(128 + number)
