"""A run folder: its config, its metrics, its checkpoints."""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import yaml
from tqdm import tqdm

from base import (
    InputError,
    complete_checkpoints,
    expanded,
    flush,
    read_json,
    read_optional_json,
    reading,
    replace_text,
    writing,
)
from configs import Config, load_config
from data.config import DataConfig
from data.corpus import Corpus
from data.tokenizer import load_tokenizer, tokenizer_files
from model.checkpoint import best_checkpoint, read_rows
from training.starting import fill_in_model
from training.versions import versions

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

# Keys for how and where a run is made and watched, not for what is trained.
RUNTIME_KEYS = ("name", "runs_dir", "data.cache_dir", "train.device", "train.compile", "train.log_every", "wandb.")
RUNTIME_KEYS += ("train.eval_every", "train.checkpoint_every", "train.keep_checkpoints", "train.max_skipped_steps")
# what the machine offers; the batch stays the same
RUNTIME_KEYS += ("train.threads", "train.micro_batch_size", "train.parallel", "train.recompute")
# where the text is; the corpus hash tells whether text and split are the same
RUNTIME_KEYS += ("data.source", "data.subset", "data.split", "data.text_column", "data.errors")
RUNTIME_KEYS += ("data.revision", "data.streaming", "data.max_tokens")
# What saving, setting aside and pruning make in checkpoints/; earlier versions left two dots.
OURS = re.compile(r"step_\d+(\.diverged)?|\.+step_\d+(\.(diverged|partial|old|removed))+")


class RunFolder:
    """runs/<name>/ with config.yaml, corpus.json, versions.json, metrics.jsonl and checkpoints/."""

    def __init__(self, config: Config, resume: bool = False, overwrite: bool = False):
        """Writes nothing. InputError if resume and overwrite do not suit what the folder holds."""
        self.config, self.path, self.resume, self.overwrite = config, config.folder, resume, overwrite
        self.metrics_file = self.path / "metrics.jsonl"
        self._check_place()

    @reading()
    def _check_place(self) -> None:
        for place in (self.path, *self.path.parents):
            if place.exists() and not place.is_dir():
                raise InputError(f"{place}: expected a folder for runs_dir and name, got a file")
        holds_run = self.exists(self.config)
        if self.resume and not holds_run:
            raise InputError(f"{self.path}: holds no run to resume")
        if holds_run and not (self.resume or self.overwrite):
            raise InputError(
                f"{self.path}: already holds a run; --resume continues it, --overwrite replaces it, "
                "name=… starts another"
            )
        if holds_run and self.overwrite:
            for key, used in _files_used(self.config).items():
                if expanded(used).resolve().is_relative_to(self.path.resolve()):
                    raise InputError(
                        f"{key}: {used} is in {self.path}, which --overwrite would remove; name=… starts another"
                    )
        early = {".lock", "corpus.json", "metrics.jsonl", "versions.json"}  # all that a kill at the start can leave
        early |= {f".{name}.partial" for name in ("corpus.json", "versions.json", "config.yaml")}
        if not holds_run and self.path.exists() and {file.name for file in self.path.iterdir()} - early:
            raise InputError(f"{self.path}: holds files that are not a run; choose another name or runs_dir")

    @staticmethod
    @reading()
    def exists(config: Config) -> bool:
        """Whether the config's folder holds a run."""
        return (config.folder / "config.yaml").is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder if needed and locks it. InputError while another live process holds the lock."""
        with writing(f"runs_dir: {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a")
        with file:
            try:
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
            except BlockingIOError:
                raise InputError(f"{self.path}: another process is training there") from None
            except OSError:  # a file system without locks
                pass
            self._check_place()  # again: another process may have come and gone
            yield

    def start(self, corpus: Corpus) -> None:
        """Fills the folder for a new run, after removing an old one."""
        # config.yaml last, since it marks the folder as a run
        for old in sorted(self.path.iterdir(), key=lambda path: path.name == "config.yaml"):
            with writing(old):
                if old.is_dir() and not old.is_symlink():  # of a link only itself: where it leads is not the run's
                    shutil.rmtree(old)
                elif old.name != ".lock":
                    old.unlink()
        with writing(self.path):
            self.metrics_file.touch()
        self.describe(corpus, 0)

    def describe(self, corpus: Corpus, step: int) -> None:
        """Writes what the run is made of, when it starts (step 0) or continues after a step.

        config.yaml may have more steps than before. versions.json has an entry for each step after which they change.
        """
        described = {"source": corpus.source, "hash": corpus.hash}
        described |= {"train_tokens": len(corpus.train), "val_tokens": len(corpus.val)}
        described |= {"train_bytes": corpus.train_bytes, "val_bytes": corpus.val_bytes}
        texts, known = {"corpus.json": json.dumps(described, indent=2)}, self.known_versions()
        if list(known.values())[-1:] != [versions()]:
            texts["versions.json"] = json.dumps({**known, str(step): versions()}, indent=2)
        config = self.config.model_dump(mode="json")
        texts["config.yaml"] = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        for name, text in texts.items():
            with writing(self.path / name):
                replace_text(self.path / name, text)

    def differing_keys(self) -> list[str]:
        """Dotted keys in which the config differs from that of the run in the folder, except RUNTIME_KEYS."""
        before = load_config(self.path / "config.yaml")
        old, new = (trained_keys(config.model_dump(mode="json")) for config in (before, fill_in_model(self.config)))
        if new["model.vocab_size"] is None:  # not yet filled in
            new["model.vocab_size"] = old["model.vocab_size"]
        return [key for key in old | new if old.get(key) != new.get(key)]

    def check_same_experiment(self, corpus: Corpus) -> None:
        """InputError naming the keys, the text or the tokenizer in which this experiment differs from the folder's.

        More steps are allowed: the schedule then stretches over the rest.
        """
        if differing := [key for key in self.differing_keys() if key != "train.steps"]:
            raise InputError(f"{self.path}: cannot resume with another {', '.join(differing)}")
        if self.corpus()["hash"] != corpus.hash:
            raise InputError(f"{self.path}: the text of data.source has changed since the run started")
        checkpoint = self.newest_checkpoint()
        # written by one version of the library, equal tokenizers are equal text
        if checkpoint and tokenizer_files(load_tokenizer(checkpoint)) != tokenizer_files(corpus.tokenizer):
            raise InputError(
                f"{checkpoint / 'tokenizer.json'}: data.source now gives another tokenizer; resume with the "
                "data.cache_dir, or else the version of tokenizers, that the run started with"
            )

    def data(self) -> DataConfig:
        """Of its config; a tokenizer that it was given is that of its newest checkpoint, even where its folder is gone."""
        data, checkpoint = self.config.data, self.newest_checkpoint()
        if not (data.tokenizer.folder and checkpoint):
            return data
        return data.model_copy(update={"tokenizer": data.tokenizer.model_copy(update={"folder": str(checkpoint)})})

    def corpus(self) -> dict:
        """Source, hash and sizes of the corpus that the run started with."""
        described = read_json(file := self.path / "corpus.json")
        sizes = ("train_tokens", "val_tokens", "train_bytes", "val_bytes")
        for key, kind in {"source": str, "hash": str, **dict.fromkeys(sizes, int)}.items():
            if not isinstance(value := described.get(key), kind):
                raise InputError(f"{file}: {key}: expected {kind.__name__}, got {value!r:.60}")
        return described

    def known_versions(self) -> dict[str, dict[str, str]]:
        """By the step after which the run was made with them: libraries, and the commit. {} where that was not written."""
        found = read_optional_json(file := self.path / "versions.json")
        texts = [text for each in found.values() for text in (each.values() if isinstance(each, dict) else [None])]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{file}: expected the versions of each step, as text; without the file it goes, too")
        return found

    def log(self, row: dict) -> None:
        """Appends a row to metrics.jsonl."""
        with writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            if row.keys() & {"val_loss", "diverged"}:  # which decide what becomes of checkpoints
                flush(file)

    def keep_rows(self) -> None:
        """Makes sure that the rows so far outlive a loss of power, as a checkpoint of their step will."""
        with writing(self.metrics_file), self.metrics_file.open("a", encoding="utf-8") as file:
            flush(file)

    def metrics(self) -> list[dict]:
        """All complete rows of metrics.jsonl; InputError if they cannot be read."""
        return read_rows(self.metrics_file)

    def drop_rows_after(self, step: int) -> None:
        """Drops the metrics rows that a resumed run will write again."""
        kept = [json.dumps(row) + "\n" for row in self.metrics() if row["step"] <= step]
        with writing(self.metrics_file):
            replace_text(self.metrics_file, "".join(kept))

    def checkpoint(self, step: int) -> Path:
        """The folder for the checkpoint after a step."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, if any."""
        complete = complete_checkpoints(self.path)
        return complete[max(complete)] if complete else None

    def is_evaluated(self, step: int) -> bool:
        """Whether the validation loss after a step has been logged."""
        return any(row["step"] == step and "val_loss" in row for row in self.metrics())

    def is_finished(self) -> bool:
        """Whether the run has done all steps of its config and the evaluation after them."""
        steps = self.config.train.steps
        return self.newest_checkpoint() == self.checkpoint(steps) and self.is_evaluated(steps)

    def divergence(self) -> str | None:
        """What was not finite, and at which step, if that ended the run."""
        for row in self.metrics():
            if "diverged" in row:
                return row["diverged"]
            if not math.isfinite(row.get("val_loss", 0.0)):  # as earlier versions logged it
                return f"step {row['step']}: validation loss {row['val_loss']}"
        return None

    def set_aside(self, checkpoint: Path) -> None:
        """Renames a checkpoint of ruined weights, so that nothing uses it; prune removes it."""
        checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.diverged"))

    def prune(self) -> None:
        """Removes all checkpoints except the newest train.keep_checkpoints and the best by validation loss.

        The loss of a checkpoint is that of the evaluation at its step; without one it cannot be the best. Leaves alone
        what others have put there, and says in a line what it cannot remove.
        """
        complete, best = complete_checkpoints(self.path), best_checkpoint(self.path)
        newest = [complete[step] for step in sorted(complete)[-self.config.train.keep_checkpoints :]]
        for path in (self.path / "checkpoints").glob("*"):
            is_ours = OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
            if is_ours and path not in [*newest, best]:
                # renamed first, so that a kill leaves no half-removed one
                hidden = path if path.name.startswith(".") else path.with_name(f".{path.name}.removed")
                try:
                    path.rename(hidden)
                    shutil.rmtree(hidden)
                except OSError as error:  # no reason to end a training
                    tqdm.write(f"warning: {path}: cannot be removed: {error.strerror or error}", file=sys.stderr)


class ReadRunFolder(RunFolder):
    """The folder for those who do not write it: all processes of a run but the first, and a rehearsal."""

    def _check_place(self) -> None:
        pass

    locked = nullcontext

    def _leave_it(self, *_) -> None:
        pass

    start = describe = log = keep_rows = drop_rows_after = set_aside = prune = _leave_it


def _files_used(config: Config) -> dict[str, str]:
    """key: path of what a run reads, or keeps for other runs, outside its own folder."""
    keys = {"train.init_from": config.train.init_from, "data.cache_dir": config.data.cache_dir}
    keys |= {"data.tokenizer.folder": config.data.tokenizer.folder}
    keys |= {f"data.source {each.source!r}": each.source for each in config.data.each()}
    return {key: path for key, path in keys.items() if path}


def trained_keys(values: dict, prefix: str = "") -> dict:
    """dotted.key: value of what is trained in a config's nested mappings, also those in a list; no RUNTIME_KEYS."""
    found = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        inner = dict(enumerate(value)) if isinstance(value, list) and any(isinstance(v, dict) for v in value) else value
        if isinstance(inner, dict):
            found |= trained_keys(inner, f"{key}.")
        elif not re.sub(r"^data\.sources\.\d+\.", "data.", key).startswith(RUNTIME_KEYS):
            found[key] = value
    return found
