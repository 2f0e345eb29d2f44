"""The training loop, from a new model or the newest checkpoint to the last step."""

import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from tqdm import tqdm

from base import InputError
from configs import Config, load_config
from data.batches import Batches
from data.corpus import Corpus, load_corpus
from data.documents import END_OF_TEXT
from data.tokenizer import load_tokenizer, tokenizer_files
from model.checkpoint import TRAINER, find_checkpoint, load_checkpoint, load_trainer, save_checkpoint
from model.device import autocast, is_out_of_memory, pick_device, to_device
from model.generation import generate
from model.transformer import Transformer
from training.evaluation import bits_per_byte, evaluate
from training.optimizer import (
    build_optimizer,
    compile_where_possible,
    learning_rate,
    optimizer_step,
    restore_optimizer,
)
from training.run import RunFolder
from training.stopping import signals_received
from training.tracking import tracking

SECONDS_BETWEEN_LINES = 60  # about how a run is, where there is no terminal for a bar


def train(config: Config, resume: bool = False, overwrite: bool = False) -> dict:
    """Trains to config.train.steps and returns the last evaluation row: step, tokens, val_loss, val_bits_per_byte.

    Writes the run folder. Batch i depends on config.seed and i alone, so a resumed run goes on where it stopped.
    SIGINT or SIGTERM finish the step, or break off the evaluation, write a checkpoint and end the program with status
    130 or 143. Raises InputError before anything is written where config, corpus and folder do not fit together, and
    later where loss, gradient or evaluation are not finite, or the disk or the device's memory are full.
    """
    run = RunFolder(config, resume, overwrite)  # refuses a taken folder before the corpus is read
    corpus = load_corpus(config.data)
    run.config = with_threads(fit_to_corpus(config, corpus), run)
    device = pick_device(config.train.device)
    with run.locked(), signals_received() as signals, using_threads(run.config.train.threads):
        trainer = (resumed if resume else started)(run, corpus, device)
        trainer.train(signals)
    return [row for row in run.metrics() if "val_loss" in row][-1]


def fit_to_corpus(config: Config, corpus: Corpus) -> Config:
    """The config with the vocabulary's size filled in; InputError where a split is shorter than one context."""
    needed, model = config.model.max_position_embeddings + 1, config.model
    if min(len(corpus.train), len(corpus.val)) < needed:
        raise InputError(
            f"data.source: {config.data.source} has {len(corpus.train)} tokens for training and {len(corpus.val)} "
            f"for validation; each needs model.max_position_embeddings + 1 = {needed}"
        )
    vocab_size = corpus.tokenizer.get_vocab_size()
    if model.vocab_size is not None and model.vocab_size < vocab_size:
        raise InputError(f"model.vocab_size: {model.vocab_size} is less than the tokenizer's {vocab_size}")
    return config.model_copy(update={"model": model.model_copy(update={"vocab_size": model.vocab_size or vocab_size})})


def with_threads(config: Config, run: RunFolder) -> Config:
    """The config with the number of threads filled in: those of the run that is resumed, or PyTorch's own."""
    before = load_config(run.path / "config.yaml").train.threads if run.resume else None
    threads = config.train.threads or before or torch.get_num_threads()
    return config.model_copy(update={"train": config.train.model_copy(update={"threads": threads})})


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Lets PyTorch have that many threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def started(run: RunFolder, corpus: Corpus, device: torch.device) -> "Trainer":
    """The trainer of a new run, in a fresh folder."""
    model, optimizer = build(run.config, device)
    run.start(corpus)
    return Trainer(run, corpus, model, optimizer)


def resumed(run: RunFolder, corpus: Corpus, device: torch.device) -> "Trainer":
    """The trainer as it was at the newest checkpoint of the folder, or at step 0 where it has none."""
    run.check_same_experiment(corpus)
    checkpoint = run.newest_checkpoint()
    model, optimizer = build(run.config, device, checkpoint and load_checkpoint(checkpoint))
    trainer = Trainer(run, corpus, model, optimizer)
    if checkpoint:
        stored = load_trainer(checkpoint)
        try:
            restore_optimizer(optimizer, stored.get("optimizer"))
            trainer.step, trainer.skipped = (int(stored.get(key, 0)) for key in ("step", "skipped"))
            trainer.saved = trainer.step
            if run.checkpoint(trainer.step) != checkpoint:
                raise ValueError(f"of step {trainer.step}")
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"{checkpoint / TRAINER}: not the state of this run ({error})") from None
    if trainer.step > run.config.train.steps:
        raise InputError(
            f"train.steps: {run.config.train.steps} is less than the {trainer.step} that {run.path} has done"
        )
    run.describe(corpus, trainer.step)
    run.forget_after(trainer.step)
    return trainer


def build(config: Config, device: torch.device, model: Transformer | None = None) -> tuple:
    """The model, new unless given, on the device, and its optimizer."""
    try:
        model = (model or Transformer(config.model, config.seed)).to(device)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise InputError(f"model: a tensor of it does not fit into memory ({str(error):.100})") from None
    return model, build_optimizer(model, config.train)


@dataclass
class Trainer:
    """A run in training."""

    run: RunFolder
    corpus: Corpus
    model: Transformer
    optimizer: torch.optim.Optimizer
    step: int = 0  # the one under way, or the last that is done
    skipped: int = 0  # steps left out so far
    saved: int = 0  # the step of the newest checkpoint

    def __post_init__(self):
        self.settings, self.context = self.run.config.train, self.run.config.model.max_position_embeddings
        self.device = self.model.output_weight.device
        self.batches = Batches(self.corpus.train, self.context, self.settings.batch_size, self.run.config.seed)
        self.busy_seconds, self.busy_steps = 0.0, 0  # since the last row of training
        self.next_line = 0.0  # when a log without a progress bar is due

    def train(self, signals: list[int]) -> None:
        """Takes the steps that are left, with all that belongs to each."""
        settings, name = self.settings, self.run.config.name
        if settings.compile:
            compile_where_possible(self.model)
        steps = range(self.step + 1, settings.steps + 1)
        bar = tqdm(steps, name, settings.steps, initial=self.step, disable=None)  # None: no bar outside a terminal
        with bar as self.bar, tracking(self.run, self.step) as self.track:
            if self.step and self.is_due(settings.eval_every) and not self.run.is_evaluated(self.step):
                self.evaluate(signals)  # it was saved, and stopped before this
            self.run.prune()
            for step in self.bar:
                self.step = step
                loss, norm, rate = self.take_step()
                is_finite = math.isfinite(loss) and math.isfinite(norm)
                if not is_finite:
                    self.leave_out(loss, norm, rate)
                if self.is_due(settings.log_every) or not is_finite:
                    self.log_step(loss, norm, rate)
                if self.is_due(settings.checkpoint_every):
                    self.save()
                if signals:
                    self.stop(signals[0])
                if self.is_due(settings.eval_every):
                    self.evaluate(signals)

    def is_due(self, every: int | None) -> bool:
        """Whether something is done after this step: every so many (None: never), and always after the last."""
        return self.step == self.settings.steps or (every is not None and self.step % every == 0)

    def take_step(self) -> tuple[float, float, float]:
        """Loss, norm of the gradient and learning rate of one update of the weights."""
        begun = time.perf_counter()
        rate = learning_rate(self.step, self.settings)
        input_ids, targets = (to_device(ids, self.device) for ids in self.batches[self.step - 1])
        with advice_where_memory_ends(self.device, self.settings.micro_batch_size, self.settings.batch_size):
            loss, norm = optimizer_step(self.model, self.optimizer, input_ids, targets, rate, self.settings)
        self.busy_seconds, self.busy_steps = self.busy_seconds + time.perf_counter() - begun, self.busy_steps + 1
        return loss, norm, rate

    def leave_out(self, loss: float, norm: float, rate: float) -> None:
        """Counts a step that was not finite and has changed nothing; InputError where it is one too many."""
        self.skipped += 1
        allowed = self.settings.max_skipped_steps
        problem = f"step {self.step}: loss {loss:.4g}, gradient's norm {norm:.4g} at train.learning_rate {rate:.2g}"
        if self.skipped > allowed:
            self.give_up(problem)
        tqdm.write(f"warning: {problem}; left out, {self.skipped} of {allowed}", file=sys.stderr)

    def log_step(self, loss: float, norm: float, rate: float) -> None:
        """Logs a training row, in which what is not finite is None."""
        speed = self.busy_steps * self.settings.batch_size * self.context / self.busy_seconds
        self.busy_seconds, self.busy_steps = 0.0, 0
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        losses = {"train_loss": loss, "grad_norm": norm} if is_finite else {"train_loss": None, "grad_norm": None}
        self.log({**losses, "learning_rate": rate, "tokens_per_second": speed, **self.model.position.metrics()})
        said = f"loss {loss:.3f}, lr {rate:.1e}, {speed:,.0f} tokens/s"
        self.bar.set_postfix_str(said)
        if self.bar.disable and time.monotonic() >= self.next_line:
            print(f"{self.run.config.name}: step {self.step} of {self.settings.steps}, {said}", file=sys.stderr)
            self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES

    def log(self, numbers: dict) -> None:
        """Appends a row of this step to metrics.jsonl, and tracks it."""
        row = {"step": self.step, "tokens": self.step * self.settings.batch_size * self.context, **numbers}
        self.run.log(row)
        self.track(row)

    def save(self) -> None:
        """Writes a checkpoint of the model, its tokenizer and what a resumed training needs."""
        state = {"step": self.step, "skipped": self.skipped, "optimizer": self.optimizer.state_dict()}
        save_checkpoint(self.run.checkpoint(self.step), self.model, tokenizer_files(self.corpus.tokenizer), state)
        self.saved = self.step
        if not self.is_due(self.settings.eval_every):  # else only after the evaluation, which may find it ruined
            self.run.prune()

    def evaluate(self, signals: list[int]) -> None:
        """Logs the loss of the validation split; InputError where it is not finite. A signal ends the program."""
        nats = self.nats(self.corpus.val, signals)
        if nats is None:
            self.stop(signals[0])
        loss, per_byte = nats / (len(self.corpus.val) - 1), bits_per_byte(nats, self.corpus.val_bytes)
        if not math.isfinite(loss):
            if self.saved == self.step:
                self.run.set_aside(self.run.checkpoint(self.step))
            rate = learning_rate(self.step, self.settings)
            self.give_up(f"step {self.step}: validation loss {loss:.4g} at train.learning_rate {rate:.2g}")
        self.log({"val_loss": loss, "val_bits_per_byte": per_byte})
        self.run.prune()

    def nats(self, tokens: np.ndarray, signals: list[int] = ()) -> float | None:
        """What `evaluate` says of the model as it is."""
        with autocast(self.settings.dtype, self.device), advice_where_memory_ends(self.device, 1, 1):
            return evaluate(self.model, tokens, self.context, signals)

    def give_up(self, problem: str) -> NoReturn:
        """Ends the run with an InputError, and records in metrics.jsonl what is not finite.

        Checkpoints whose weights were ruined already are set aside.
        """
        while checkpoint := self.run.newest_checkpoint():
            self.model.load_state_dict(load_checkpoint(checkpoint).state_dict())
            if math.isfinite(self.nats(self.corpus.val[: self.context + 1])):
                break
            self.run.set_aside(checkpoint)
        self.log({"diverged": problem})
        raise InputError(f"{problem}; the last good checkpoint is {checkpoint or 'none yet'}")

    def stop(self, signal: int) -> NoReturn:
        """Ends the program as the signal would, with a checkpoint, and says how to go on."""
        if self.saved != self.step:
            self.save()
        self.bar.close()
        again = shlex.join(["python", "train.py", str(self.run.path / "config.yaml"), "--resume"])
        print(f"stopped after step {self.step} of {self.settings.steps}; to go on: {again}", file=sys.stderr)
        raise SystemExit(128 + signal)


@contextmanager
def advice_where_memory_ends(device: torch.device, together: int, batch_size: int) -> Iterator[None]:
    """Turns a device's lack of memory into an InputError that says how a batch fits into less.

    together: sequences that go through the model at once.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    else:
        return
    together = min(together, batch_size)
    if together == 1:
        raise InputError(
            f"model: a single sequence is more than the memory of {device} holds; use a smaller model or a shorter "
            "model.max_position_embeddings"
        )
    fewer = together // 2
    raise InputError(
        f"train.micro_batch_size: {together} sequences at once are more than the memory of {device} holds; "
        f"train.micro_batch_size={fewer} makes the same batch of {batch_size} in {-(-batch_size // fewer)} parts"
    )


def sample(config: Config, max_new_tokens: int = 128) -> str:
    """Text that the finished run continues an empty prompt with, as far as its scheme has positions."""
    folder = find_checkpoint(config.folder)
    model, tokenizer = load_checkpoint(folder), load_tokenizer(folder)
    start = torch.tensor([tokenizer.token_to_id(END_OF_TEXT)])
    count = min(max_new_tokens, model.position.max_length or max_new_tokens)
    known = tokenizer.get_vocab().values()  # model.vocab_size may be larger
    return tokenizer.decode([ids.item() for ids in generate(model, start, count, temperature=0.8, token_ids=known)])
