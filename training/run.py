"""A run folder: its config, its metrics, its checkpoints."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from base import InputError, writing
from configs import Config, load_config
from data.corpus import Corpus
from data.tokenizer import load_tokenizer, tokenizer_files
from model.checkpoint import complete_checkpoints, read_json
from training.versions import versions

# How and where a run is made and watched, not what is trained.
RUNTIME_KEYS = ("name", "runs_dir", "data.cache_dir", "train.device", "train.compile", "train.log_every", "wandb.")
RUNTIME_KEYS += ("train.eval_every", "train.checkpoint_every", "train.keep_checkpoints", "train.max_skipped_steps")
RUNTIME_KEYS += ("train.threads",)  # how many there are, depends on the machine
RUNTIME_KEYS += ("train.micro_batch_size",)  # what memory allows: the batch of a step stays the same
# where the text lies; that it is the same, with the same split, its hash says
RUNTIME_KEYS += ("data.source", "data.subset", "data.split", "data.text_column", "data.errors")


class RunFolder:
    """runs/<name>/ with config.yaml, corpus.json, metrics.jsonl and checkpoints/."""

    def __init__(self, config: Config, resume: bool = False, overwrite: bool = False):
        """Changes nothing yet. InputError where the folder holds a run and neither flag is given, or the reverse."""
        self.config, self.path, self.resume, self.overwrite = config, config.folder, resume, overwrite
        self.metrics_file = self.path / "metrics.jsonl"
        self._check()

    def _check(self) -> None:
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise InputError(f"{place}: is a file, runs_dir and name need a folder there")
        holds_run = self.exists(self.config)
        if self.resume and not holds_run:
            raise InputError(f"{self.path}: holds no run to resume")
        if holds_run and not (self.resume or self.overwrite):
            raise InputError(
                f"{self.path}: already holds a run; --resume continues it, --overwrite replaces it, "
                "name=… starts another"
            )
        begun = {".lock", "corpus.json", "metrics.jsonl", "versions.json"}  # left by a kill at the very start
        begun |= {f".{name}.partial" for name in ("corpus.json", "versions.json", "config.yaml")}
        if not holds_run and self.path.exists() and {file.name for file in self.path.iterdir()} - begun:
            raise InputError(f"{self.path}: holds files that are not a run, and is left as it is")

    @staticmethod
    def exists(config: Config) -> bool:
        """Whether the config's folder holds a run."""
        return (config.folder / "config.yaml").is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps the folder, made if need be, from other processes. InputError while another that lives has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"runs_dir: {self.path} cannot be made: {error.strerror}") from None
        with writing(self.path):
            file = (self.path / ".lock").open("a")
        with file:
            try:
                _lock(file)
            except BlockingIOError:
                raise InputError(f"{self.path}: another process is training there") from None
            except OSError:  # a file system without locks
                pass
            self._check()  # again: that other process may have come and gone
            yield

    def start(self, corpus: Corpus) -> None:
        """Fills the folder of a new run, in place of an old one."""
        # config.yaml last, since it is what marks the folder as a run
        for old in sorted(self.path.iterdir(), key=lambda path: path.name == "config.yaml"):
            if old.is_dir():
                shutil.rmtree(old)
            elif old.name != ".lock":
                old.unlink()
        with writing(self.path):
            self.metrics_file.touch()
        self.describe(corpus, 0)

    def describe(self, corpus: Corpus, step: int) -> None:
        """Writes what a run is made of: that of a new one, or of one that goes on after a step.

        config.yaml may have more steps than before. versions.json has an entry for each step that others begin after.
        """
        described = {
            "source": corpus.source,
            "hash": corpus.hash,
            "train_tokens": len(corpus.train),
            "val_tokens": len(corpus.val),
            "train_bytes": corpus.train_bytes,
            "val_bytes": corpus.val_bytes,
        }
        replace_text(self.path / "corpus.json", json.dumps(described, indent=2))
        file = self.path / "versions.json"
        known = read_json(file) if file.exists() else {}
        if list(known.values())[-1:] != [versions()]:
            replace_text(file, json.dumps({**known, str(step): versions()}, indent=2))
        text = yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        replace_text(self.path / "config.yaml", text)

    def differing_keys(self) -> list[str]:
        """Dotted keys in which the config differs from that of the run in the folder, but for RUNTIME_KEYS."""
        old, new = (flat(c.model_dump(mode="json")) for c in (load_config(self.path / "config.yaml"), self.config))
        if new["model.vocab_size"] is None:  # not yet filled in
            new["model.vocab_size"] = old["model.vocab_size"]
        return [key for key in old | new if old.get(key) != new.get(key) and not key.startswith(RUNTIME_KEYS)]

    def check_same_experiment(self, corpus: Corpus) -> None:
        """InputError naming the keys, or the text or tokenizer, that make this another experiment than the folder's.

        More steps are allowed: the schedule then stretches over what is left.
        """
        if differing := [key for key in self.differing_keys() if key != "train.steps"]:
            raise InputError(f"{self.path}: cannot resume with another {', '.join(differing)}")
        if self.corpus()["hash"] != corpus.hash:
            raise InputError(f"{self.path}: the text of data.source has changed since the run was started")
        checkpoint = self.newest_checkpoint()
        # read and written by the same version of the library, two of the same tokenizer are the same text
        if checkpoint and tokenizer_files(load_tokenizer(checkpoint)) != tokenizer_files(corpus.tokenizer):
            raise InputError(
                f"{checkpoint / 'tokenizer.json'}: is not the tokenizer that comes of data.source now; the run goes on "
                "with the data.cache_dir, or else the version of tokenizers, that it was started with"
            )

    def corpus(self) -> dict:
        """The source, hash and sizes of the corpus that the run was started with."""
        return read_json(self.path / "corpus.json")

    def log(self, row: dict) -> None:
        """Appends a row to metrics.jsonl."""
        with writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict]:
        """All complete rows of metrics.jsonl; InputError where they cannot be read."""
        try:
            lines = self.metrics_file.read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line) for line in lines[:-1]]  # what follows the last newline was cut off by a crash
            if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
                raise ValueError("a row without its step")
            return rows
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.metrics_file}: missing or damaged ({error})") from None

    def forget_after(self, step: int) -> None:
        """Cuts the rows that a resumed run will write again."""
        kept = [json.dumps(row) + "\n" for row in self.metrics() if row["step"] <= step]
        replace_text(self.metrics_file, "".join(kept))

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after a step."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, if there is one."""
        complete = complete_checkpoints(self.path)
        return complete[max(complete)] if complete else None

    def is_evaluated(self, step: int) -> bool:
        """Whether the loss of the validation split after a step has been logged."""
        return any(row["step"] == step and "val_loss" in row for row in self.metrics())

    def is_finished(self) -> bool:
        """Whether the run has done all the steps of its config, and the evaluation after them."""
        steps = self.config.train.steps
        return self.newest_checkpoint() == self.checkpoint(steps) and self.is_evaluated(steps)

    def divergence(self) -> str | None:
        """What was no longer finite, and at which step, where that has ended the run."""
        for row in self.metrics():
            if "diverged" in row:
                return row["diverged"]
            if not math.isfinite(row.get("val_loss", 0.0)):  # as earlier versions logged it
                return f"step {row['step']}: validation loss {row['val_loss']}"
        return None

    def set_aside(self, checkpoint: Path) -> None:
        """Renames a checkpoint of ruined weights, so that nothing goes on from it; prune removes it."""
        checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.diverged"))

    def prune(self) -> None:
        """Removes all checkpoints but the newest train.keep_checkpoints and the best by validation loss.

        A checkpoint has the loss of the evaluation at its step; without one it is not the best.
        """
        complete = complete_checkpoints(self.path)
        kept = set(sorted(complete)[-self.config.train.keep_checkpoints :])
        losses = {row["step"]: row["val_loss"] for row in self.metrics() if "val_loss" in row}
        losses = {step: loss for step, loss in losses.items() if step in complete and math.isfinite(loss)}
        kept |= {min(losses, key=losses.get)} if losses else set()
        for path in (self.path / "checkpoints").glob("*"):
            if path not in [complete[step] for step in kept]:
                hidden = path.with_name(f".{path.name}.removed")  # so that a kill leaves no half of a checkpoint
                path.rename(hidden)
                shutil.rmtree(hidden)


def _lock(file) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however it ends


def replace_text(file: Path, text: str) -> None:
    """Writes a file so that a kill leaves the old one or the new one, never half of it."""
    beside = file.with_name(f".{file.name}.partial")
    with writing(file):
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)


def flat(mapping: dict, prefix: str = "") -> dict:
    """Nested mappings as one with dotted keys."""
    found = {}
    for key, value in mapping.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
