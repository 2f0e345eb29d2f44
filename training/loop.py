"""The training loop: `train`, and what it calls in the order in which it calls it."""

import math
import shlex
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from tqdm import tqdm

from base import InputError
from configs import Config
from data.batches import Batches
from data.corpus import Corpus, load_corpus
from model.checkpoint import TRAINER, load_checkpoint, load_trainer, save_checkpoint
from model.device import autocast, is_out_of_memory, pick_device
from model.transformer import Transformer
from training.alone import Alone
from training.evaluation import bits_per_byte, evaluate
from training.facts import duration, opening
from training.machine import compile_where_possible, explain_out_of_memory, pick_engine, using_threads
from training.optimizer import build_optimizer, restore_optimizer
from training.run import ReadRunFolder, RunFolder
from training.schedule import learning_rate
from training.starting import fill_in_threads, first_model, fit_to_corpus
from training.step import StepResult, optimizer_step
from training.stopping import signals_received
from training.tracking import tracking

SECONDS_BETWEEN_LINES = 60  # of progress, where there is no terminal for a bar


def train(config: Config, resume: bool = False, overwrite: bool = False, tell: bool = True) -> dict:
    """Trains to config.train.steps and returns the last evaluation row: step, tokens, val_loss, val_bits_per_byte.

    tell: whether to print what is known at the start.
    Writes the run folder. Batch i depends only on config.seed and i, so a resumed run continues where it stopped.
    On SIGINT, SIGTERM or SIGHUP it finishes the step, or breaks off the evaluation, writes a checkpoint and ends the
    program with status 130, 143 or 129. Raises InputError before writing anything if config, corpus and folder do not fit together,
    and later if loss, gradient or evaluation is not finite, or if the disk or the device's memory is full.
    """
    engine = pick_engine(config.train)
    kind = ReadRunFolder if engine.rank else RunFolder
    run = kind(config, resume, overwrite)  # rejects a taken folder before the corpus is read
    data = run.data() if resume else config.data
    corpus = None if engine.rank else load_corpus(data)
    engine.from_first(None)
    corpus = corpus or load_corpus(data)  # which rank 0 has prepared
    run.config = fill_in_threads(fit_to_corpus(config, corpus), resume)
    device = pick_device(config.train.device)
    with run.locked(), signals_received(engine.size == 1) as signals, using_threads(run.config.train.threads):
        trainer = make_trainer(run, corpus, device, signals, engine)
        if tell:
            parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
            tokens = trainer.batches.targets(config.train.steps)
            print(*opening(run.config, corpus, parameters, device, tokens), sep="\n", file=sys.stderr)
        trainer.train()
    return engine.from_first([row for row in run.metrics() if "val_loss" in row][-1:])[0]


def make_trainer(run: RunFolder, corpus: Corpus, device: torch.device, signals: list[int], engine: Alone) -> "Trainer":
    """The trainer of a new run, in a fresh folder, or of a resumed one, as of its newest checkpoint if it has any.

    InputError: that run is another one, or with other steps would have ended before, or would at this step have its scheme
    where the run has dropped it, or the other way round.
    """
    if run.resume:
        run.check_same_experiment(corpus)
    checkpoint = run.newest_checkpoint() if run.resume else None
    settings, config = run.config.train, run.config.model
    if settings.document_mask:  # in the model's config, as whoever evaluates it later needs it too
        config = config.model_copy(update={"document_start_token_id": corpus.end_of_text})

    def build():
        return load_checkpoint(checkpoint) if checkpoint else first_model(settings.init_from, config, run.config.seed)

    try:
        model = engine.place(build, device)
    except RuntimeError as error:
        if engine.size > 1 and not is_out_of_memory(error):  # another process may have ended
            raise
        raise InputError(f"model: a tensor does not fit into memory ({str(error):.100})") from None
    trainer = Trainer(run, corpus, model, signals, engine)
    if checkpoint:
        trainer.restore(checkpoint)
    if trainer.step > (steps := settings.steps):
        raise InputError(f"train.steps: expected at least the {trainer.step} that {run.path} has done, got {steps}")
    until, last, dropped = settings.position_until, settings.position_steps, model.config.position.scheme == "none"
    if until is not None and (trainer.step < last if dropped else trainer.step > last):
        raise InputError(
            f"train.position_until: {until} of train.steps {settings.steps} drops the scheme after step {last}, but at "
            f"step {trainer.step} the run in {run.path} {'has already dropped it' if dropped else 'still has it'}"
        )
    if run.resume:
        run.describe(corpus, trainer.step)
        run.drop_rows_after(trainer.step)
    else:
        run.start(corpus)
    return trainer


class Trainer:
    """A run in training: what it needs, and how far it is."""

    def __init__(self, run: RunFolder, corpus: Corpus, model: Transformer, signals: list[int], engine: Alone):
        """signals: those received so far."""
        self.run, self.corpus, self.model, self.signals, self.engine = run, corpus, model, signals, engine
        self.settings, self.context = run.config.train, run.config.model.max_position_embeddings
        self.device = model.output_weight.device
        self.optimizer = build_optimizer(model, self.settings, engine)
        model.recompute = self.settings.recompute
        self.end_of_text = None if run.config.data.pack else corpus.end_of_text  # None: documents are packed
        drawn = self.context, self.settings.batch_size, run.config.seed, self.end_of_text
        self.batches = Batches([part.train for part in corpus.parts], *drawn, [part.weight for part in corpus.parts])
        self.step = 0  # in progress, or the last one done
        self.skipped = 0  # steps skipped so far
        self.saved = 0  # step of the newest checkpoint
        self.busy_seconds, self.busy_steps = 0.0, 0  # in steps, since the last training row
        self.next_line = 0.0  # when to print progress again, as time.monotonic()
        self.shown: dict[str, str] = {}  # the progress in words

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

    def drop_position(self) -> None:
        """Continues without the positional scheme; the other weights keep their moments."""
        old, before, moments = self.model, dict(self.model.named_parameters()), self.optimizer.state
        self.model = self.engine.without_position(old)
        self.model.recompute = self.settings.recompute
        self.optimizer = build_optimizer(self.model, self.settings, self.engine)
        kept = {new: moments[before[name]] for name, new in self.model.named_parameters() if before[name] in moments}
        self.optimizer.state.update(kept)
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

    def problem(self, what: str) -> str:
        """What was not finite in this step, with its learning rate under the key of the highest one in this part."""
        is_free = self.step > self.settings.position_steps and self.settings.position_free_learning_rate
        key = f"train.{'position_free_' if is_free else ''}learning_rate"
        return f"step {self.step}: {what} at {key} {learning_rate(self.step, self.settings):.2g}"

    def skip_step(self, result: StepResult) -> None:
        """Counts a step that was not finite and so changed nothing; ends the run if it is one too many."""
        self.skipped += 1
        problem = self.problem(f"loss {result.loss:.4g}, gradient norm {result.grad_norm:.4g}")
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
            self.run.keep_rows()
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
            self.end_as_diverged(self.problem(f"validation loss {loss:.4g}"))
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
        self.log({"diverged": problem})
        checkpoint = None
        if not self.engine.rank:
            while checkpoint := self.run.newest_checkpoint():
                if self.is_good(checkpoint):
                    break
                self.run.set_aside(checkpoint)
        checkpoint = self.engine.from_first(checkpoint)
        raise InputError(f"{problem}; the last good checkpoint is {checkpoint or 'none yet'}")

    def is_good(self, checkpoint: Path) -> bool:
        """Whether a checkpoint's loss on the first window of the validation split is finite."""
        model = load_checkpoint(checkpoint)  # on the CPU: the device may be full; perhaps with a scheme dropped since
        window = self.corpus.val[: self.context + 1]
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
