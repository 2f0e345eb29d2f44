"""Configs and a corpus small enough to train within a test; programs called in this process; kills at a step."""

import json
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml

from base import find_checkpoint
from configs import Config, load_config
from model.checkpoint import load_trainer
from training import alone
from training.loop import Trainer, train

torch.set_num_threads(1)  # models this small only wait for a second one

NEEDS_ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
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


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal numbers of a shape; the seed tells two of them apart."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


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
def around_step(number: int, surround: Callable[[Trainer], AbstractContextManager]) -> Iterator[None]:
    """Inside it, that step of every run is taken within surround(trainer)."""
    real = Trainer.take_step

    def take_step(trainer):
        with surround(trainer) if trainer.step == number else ExitStack():
            return real(trainer)

    with mock.patch.object(Trainer, "take_step", take_step):
        yield


def before_step(number: int, action: Callable[[Trainer], None]) -> AbstractContextManager:
    """Inside it, action(trainer) is called before that step of every run."""

    def surround(trainer):
        action(trainer)
        return ExitStack()

    return around_step(number, surround)


def with_loss(number: int, change: Callable) -> AbstractContextManager:
    """Inside it, that step of every run has the loss change(real, model, input_ids, targets)."""
    real = alone.summed_loss
    return around_step(number, lambda _: mock.patch.object(alone, "summed_loss", lambda *given: change(real, *given)))


@contextmanager
def killed_before_step(number: int) -> Iterator[None]:
    """What is trained in it must end, as if killed, before it has done this step."""

    def stop(_):
        raise Stopped

    with before_step(number, stop), pytest.raises(Stopped):
        yield


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing past it fails, as on a disk that is full; Python has switched off the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def trained(folder: Path, *overrides: str) -> Config:
    """`run_config`, after its training."""
    config = run_config(folder, *overrides)
    train(config)
    return config


def train_until(number: int, config: Config, **how) -> None:
    """Trains it, to a kill before this step."""
    with killed_before_step(number):
        train(config, **how)


def whole_and_other(folder: Path, *overrides: str) -> tuple[Config, Config]:
    """Two equal runs: one that is trained, and one to be treated worse and compared with it."""
    return trained(folder, "name=whole", *overrides), run_config(folder, "name=other", *overrides)


def rows(run: Path) -> list[dict]:
    """What metrics.jsonl holds, without the one figure that no two runs share."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]


def weights(run: Path) -> bytes:
    """The newest checkpoint's weights file."""
    return (find_checkpoint(run) / "model.safetensors").read_bytes()


def trainer_state(run: Path) -> dict:
    """What the newest checkpoint keeps for a resumed training."""
    return load_trainer(find_checkpoint(run))


def names(folder: Path) -> list[str]:
    """What a folder holds, sorted."""
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_bits(one: Config, two: Config) -> None:
    """Of metrics, the newest checkpoint's model and tokenizer, and all that a resumed training takes from it."""
    assert rows(one.folder) == rows(two.folder)
    files = [{path.name: data for path, data in contents(find_checkpoint(run.folder)).items()} for run in (one, two)]
    for each in files:
        del each["trainer.pt"], each["SHA256SUMS"]  # compared below: a pickle of the same values may differ
    assert files[0] == files[1]
    torch.testing.assert_close(trainer_state(one.folder), trainer_state(two.folder), rtol=0, atol=0)
