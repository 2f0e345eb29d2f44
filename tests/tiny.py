"""Configs and a corpus small enough to train within a test, and the programs called in this process."""

import json
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml

from configs import Config, load_config
from training.loop import Trainer

torch.set_num_threads(1)  # models this small only wait for a second one

WORDS = "the of and to in is that it was for on are as with his they at be this from have or by one had not".split()
TEXT = " ".join(random.Random(0).choices(WORDS, k=1000))  # 3.7 kB


def settings(folder: Path) -> dict:
    """Six steps of a one-layer model over TEXT, everything written inside `folder`."""
    source = folder / "text.txt"
    if not source.exists():
        source.write_text(TEXT, encoding="utf-8")
    return {
        "runs_dir": str(folder / "runs"),
        "data": {"source": str(source), "tokenizer": {"kind": "byte"}, "cache_dir": str(folder / "cache")},
        "model": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 16,
        },
        "train": {
            "steps": 6, "batch_size": 4, "warmup_steps": 2, "learning_rate": 0.01, "log_every": 1, "device": "cpu"
        },
    }  # fmt: skip


def config_file(folder: Path, name: str = "tiny") -> Path:
    """`settings` as a YAML file."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings(folder)), encoding="utf-8")
    return path


def run_config(folder: Path, *overrides: str) -> Config:
    """The config of `settings` with overrides."""
    return load_config(config_file(folder), list(overrides))


def replace_path(file: Path, old: Path, new: Path) -> None:
    """In a YAML file, which may have broken a long path with spaces into lines; writes JSON, which is YAML."""
    text = json.dumps(yaml.safe_load(file.read_text(encoding="utf-8")), ensure_ascii=False)
    file.write_text(text.replace(str(old), str(new)), encoding="utf-8")


def call(program, *arguments) -> int:
    """Exit status of a program's main() for these arguments."""
    handler = signal.getsignal(signal.SIGTERM)  # compare.py sets its own
    with mock.patch.object(sys, "argv", [f"{program.__name__}.py", *map(str, arguments)]):
        try:
            program.main()
        except SystemExit as end:
            return end.code
        finally:
            signal.signal(signal.SIGTERM, handler)
    return 0


class Stopped(Exception):
    """A kill."""


@contextmanager
def before_step(number: int, action: Callable[[Trainer], None]) -> Iterator[None]:
    """While it is entered, action(trainer) is called before that step of every run."""
    real = Trainer.take_step

    def take_step(trainer):
        if trainer.step == number:
            action(trainer)
        return real(trainer)

    with mock.patch.object(Trainer, "take_step", take_step):
        yield


@contextmanager
def killed_before_step(number: int) -> Iterator[None]:
    """What is trained in it must end, as if killed, before it has done this step."""

    def stop(_):
        raise Stopped

    with before_step(number, stop), pytest.raises(Stopped):
        yield


def rows(run: Path) -> list[dict]:
    """What metrics.jsonl holds, without the one figure that no two runs share."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]


def weights(run: Path) -> bytes:
    """The newest checkpoint's weights file."""
    return sorted(run.glob("checkpoints/step_*/model.safetensors"))[-1].read_bytes()
