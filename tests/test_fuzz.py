"""What strangers may hand over: tampered checkpoints and run folders, broken corpora, any YAML at all.

Each case is made from its number alone. --full tries a thousand of each kind; a case that once failed is kept in KNOWN.
"""

import gzip
import json
import os
import pickle
import random
import resource
import shutil
import tempfile
import time
from contextlib import chdir
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings, strategies
from safetensors.torch import load_file, save_file

import generate
from base import InputError, find_checkpoint
from configs import Config, load_config
from data.config import DataConfig
from data.corpus import load_corpus
from data.documents import END_OF_TEXT
from data.tokenizer import load_tokenizer
from model.checkpoint import load_checkpoint, load_trainer
from model.position import POSITIONS
from settings import FrozenConfig
from tiny import call, run_config
from training.loop import train

KNOWN = {"checkpoint": [494, 526, 932], "run": [], "corpus": [159, 455, 945]}  # which once failed
MAX_SECONDS, MAX_BYTES = 30, 500_000_000  # the seconds are of this process's own work


def pytest_generate_tests(metafunc):
    for kind in KNOWN.keys() & set(metafunc.fixturenames):
        numbers = sorted({*range(1000 if metafunc.config.getoption("--full") else 40), *KNOWN[kind]})
        metafunc.parametrize(kind, numbers, ids=map(str, numbers))


@pytest.fixture
def bounded():
    """Neither minutes nor gigabytes."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - begun < MAX_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MAX_BYTES


def outcome(attempt, *arguments):
    """What it returns, or the one line that it refuses with."""
    try:
        return attempt(*arguments)
    except InputError as error:
        line = str(error)
        assert line and "\n" not in line and len(line) < 1500, line
        return line


# Tampering


class Runs:
    """What unpickling calls where pickles are trusted."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def flip(rng, file):
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 16, 200])):
        if content:
            content[rng.randrange(min(len(content), rng.choice([64, 2000, 10**9])))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(rng, file):
    content = file.read_bytes()
    file.write_bytes(content[: rng.choice([0, 1, 8, rng.randrange(len(content) + 1), max(0, len(content) - 1)])])


def grow(rng, file):
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.choice([1, 8, 5000])))


def splice(rng, file):
    content = file.read_bytes()
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    file.write_bytes(content[:a] + rng.choice([b"", rng.randbytes(b - a), content[a:b] * 2]) + content[b:])


def noise(rng, file):
    file.write_bytes(rng.randbytes(rng.choice([10, 1000, 100_000])))


def remove(rng, file):
    file.unlink()


def pipe(rng, file):
    file.unlink()
    os.mkfifo(file)


def folder(rng, file):
    file.unlink()
    file.mkdir()


def trusting_pickle(rng, file):
    marker = file.parent / "code-has-run"
    rng.choice([pickle.dump, torch.save])({"step": 2, "optimizer": Runs(marker)}, file.open("wb"))


def deep(rng, file):
    file.write_text(rng.choice(["[", '{"a":', '{"model_type": [']) * rng.choice([1000, 200_000]))


ABSURD = [10**9, 10**12, 10**30, -1, 0, 1, 2, 3, 1.5, 1e308, float("nan"), float("inf"), "", "x" * 3000, "1e999", None,
          [], {}, True, [1], [10**9], {"a": 1}, "\x1b[31m\n", {"scheme": "learned", "max_length": 10**9},
          {"scheme": "learned", "max_length": 10**15}, {"scheme": "t5", "num_buckets": 10**9, "max_distance": 10**18},
          {"scheme": "rope", "every": 10**9}, {"scheme": "rope", "base": 1e308}, {"scheme": "sinusoidal", "rms": 1e308},
          {"scheme": "learned_theta", "per_layer": True},
          {"scheme": "rope", "scaling": {"rope_type": "ntk", "factor": 1e300}}]  # fmt: skip


def absurd_json(rng, file):
    content = json.loads(file.read_text())
    for _ in range(rng.choice([1, 1, 1, 3])):
        content[rng.choice([*content, "quantization_config", "rope_scaling"])] = rng.choice(ABSURD)
    file.write_text(json.dumps(content))


def absurd_row(rng, file):
    lines = file.read_text().splitlines()
    row = json.loads(lines[place := rng.randrange(len(lines))])
    row[rng.choice([*row, "val_loss", "diverged"])] = rng.choice(ABSURD)
    file.write_text("\n".join([*lines[:place], json.dumps(row), *lines[place + 1 :], ""]))


def other_tensors(rng, file):
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    other = {
        "missing": lambda t: None,
        "longer": lambda t: torch.cat([t, t]),
        "flat": lambda t: t.flatten()[:-1].clone(),
        "scalar": lambda t: torch.tensor(1.0),
        "empty": lambda t: t[:0],
        "integer": lambda t: t.long(),
        "bool": lambda t: t > 0,
        "complex": lambda t: t.to(torch.complex64),
        "eighth": lambda t: t.to(torch.float8_e4m3fn),
        "half": lambda t: t.half(),
        "nan": lambda t: t * float("nan"),
        "huge": lambda t: t * 1e38,
    }
    tensors[name] = rng.choice(sorted(other.items()))[1](tensors[name])
    strangers = ["model.layers.7.norm.weight", f"model.layers.{10**9}.mlp.up_proj.weight", "x" * 9999]
    extra = rng.choice([None, None, *strangers])
    tensors |= {extra: torch.zeros(1)} if extra else {}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file, {"format": "pt"})


def absurd_header(rng, file):
    """A safetensors header whose sizes are lies."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    lies = {
        "shape": [[10**9, 10**9], [-1], [], [2**63, 2]],
        "data_offsets": [[0, 2**63], [8, 0]],
        "dtype": ["F4", "F64"],
    }
    key = rng.choice(sorted(lies))
    header[name][key] = rng.choice(lies[key])
    text = json.dumps(header).encode()
    declared = rng.choice([len(text), len(text), 2**62, 10**9])
    file.write_bytes(declared.to_bytes(8, "little") + text + content[8 + size :])


ANY = [flip, flip, flip, cut, grow, splice, noise, remove, pipe, folder, deep, trusting_pickle]
TAMPERING = {
    "model.safetensors": [*ANY, other_tensors, other_tensors, other_tensors, absurd_header, absurd_header],
    "trainer.pt": ANY,
    "config.json": [*ANY, *[absurd_json] * 9],
    "tokenizer.json": [*ANY, absurd_json],
    "SHA256SUMS": ANY,
}


def tamper(rng, place, kinds):
    name = rng.choice(sorted(kinds))
    rng.choice(kinds[name])(rng, place / name)
    return name


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of each scheme, two steps long, as seen from a folder: what is tampered with has no path of this machine."""
    folder = tmp_path_factory.mktemp("finished")
    names = [(f"name={scheme}", f"model.position={scheme}") for scheme in POSITIONS]
    with chdir(folder):
        configs = [run_config(Path(), *each, "train.steps=2") for each in names]
        for config in configs:
            train(config)
    return folder, configs


@pytest.mark.filterwarnings("ignore")  # numbers that overflow on the way
def test_a_tampered_checkpoint_loads_or_is_refused_in_one_line(checkpoint, finished, tmp_path, bounded, capfd):
    folder, configs = finished
    rng = random.Random(f"checkpoint {checkpoint}")
    place = shutil.copytree(find_checkpoint(folder / rng.choice(configs).folder), tmp_path / "copy")
    sums = (place / "SHA256SUMS").read_text()
    if not (are_checked := rng.random() < 0.5):
        (place / "SHA256SUMS").unlink()
    kinds = {name: kinds for name, kinds in TAMPERING.items() if (place / name).exists()}
    before = {name: (place / name).read_bytes() for name in kinds}
    name = tamper(rng, place, kinds)
    changed = not (place / name).is_file() or (place / name).read_bytes() != before[name]
    model, tokenizer = outcome(load_checkpoint, place), outcome(load_tokenizer, place)
    loaded = {"model.safetensors": model, "trainer.pt": outcome(load_trainer, place)}
    loaded["tokenizer.json"] = tokenizer if isinstance(tokenizer, str) else model
    if changed and are_checked and name in sums:
        assert isinstance(loaded[name], str) and name in loaded[name], "a changed bit is seen"
    assert not (place / "code-has-run").exists()
    assert call(generate, place, "--prompt", "the", "--max-new-tokens", 2) in (0, 2)
    said = capfd.readouterr().err
    assert "Traceback" not in said and "panicked" not in said
    assert len([line for line in said.splitlines() if not line.startswith("warning: ")]) <= 1, said


LINES = [kind for kind in ANY if kind is not pipe]  # a config may well come through a pipe
RUN_FILES = {"config.yaml": LINES, "corpus.json": [*ANY, absurd_json], "metrics.jsonl": [*LINES, *[absurd_row] * 3]}


@pytest.mark.filterwarnings("ignore")
def test_a_tampered_run_folder_resumes_or_is_refused_in_one_line(run, finished, tmp_path, bounded, monkeypatch):
    folder, configs = finished
    monkeypatch.chdir(folder)
    rng = random.Random(f"run {run}")
    original = rng.choice(configs)
    shutil.copytree(original.folder, tmp_path / "runs" / "copy")
    config = original.model_copy(update={"runs_dir": str(tmp_path / "runs"), "name": "copy"})
    config = config.model_copy(update={"train": config.train.model_copy(update={"steps": 4})})
    place = config.folder
    if rng.random() < 0.5:
        tamper(rng, place, RUN_FILES)
    else:
        checkpoint = find_checkpoint(place)
        if rng.random() < 0.7:
            (checkpoint / "SHA256SUMS").unlink()
        tamper(rng, checkpoint, {name: TAMPERING[name] for name in ("model.safetensors", "trainer.pt", "config.json")})
    result = outcome(train, config, True)
    assert isinstance(result, str) or result["step"] == 4
    assert not list(place.rglob("code-has-run"))


# Corpora

PIECES = [b"text ", b"words and\n", b"\r\n", b"\0", b"\xef\xbb\xbf", "北京，你好。".encode(), "👩‍👩‍👧".encode(), b"\xff",
          b"\xc3", b"\xed\xa0\x80", b"<|endoftext|>", b'"', b",", b"{", b'{"text": "a b c"}\n', b'{"text": null}\n', b"[",
          b'{"text": "\\ud800"}\n', b'{"text": 5}\n', b"text\n", b"a,text\n1,x\n", b"\xe2\x80\xa8", b"x" * 5000, b"\n" * 50,
          b"PAR1", b"\x1f\x8b", b"]", b'"unclosed', b"'", b"\xf4\x90\x80\x80", b"\\"]  # fmt: skip
SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".csv.gz")


@pytest.mark.filterwarnings("ignore")
def test_any_corpus_is_prepared_or_refused_in_one_line(corpus, tmp_path, bounded):
    """And what was prepared decodes to text of the bytes that it says, with ids that the vocabulary has."""
    rng = random.Random(f"corpus {corpus}")
    place = tmp_path / "corpus"
    place.mkdir()
    for number in range(rng.choice([1, 1, 2, 5])):
        suffix = rng.choice(SUFFIXES)
        clean = rng.random() < 0.4
        choices = [piece for piece in PIECES[:7] if piece != b"\xef\xbb\xbf"] if clean else PIECES
        content = b"".join(rng.choices(choices, k=rng.randint(0, 60)))
        if clean and ".json" in suffix:
            lines = [json.dumps({"text": content.decode()}) for _ in range(rng.randint(1, 9))]
            content = "\n".join(lines).encode()
        if suffix.endswith(".gz"):
            content = gzip.compress(content)[: rng.choice([10**9, 10**9, 30])]
        name = rng.choice(["train", "valid", f"part{number}"])
        (place / f"{name}{suffix}").write_bytes(content)
    config = DataConfig(
        source=str(place),
        errors=rng.choice(["strict", "replace"]),
        val_fraction=rng.choice([0.1, 0.5, 0.9]),
        tokenizer={"kind": rng.choice(["byte", "char", "bpe"]), "vocab_size": 300},
        cache_dir=str(tmp_path / "cache"),
    )
    found = outcome(load_corpus, config)
    if isinstance(found, str):
        assert "data." in found or str(place) in found
        assert {path.suffix for path in (tmp_path / "cache").glob("*")} <= {".lock"}
        return
    end = found.tokenizer.token_to_id(END_OF_TEXT)
    for tokens, size in ((found.train, found.train_bytes), (found.val, found.val_bytes)):
        assert tokens[0] == end and tokens.max() < found.tokenizer.get_vocab_size()
        documents = numpy.split(tokens, numpy.flatnonzero(tokens == end))
        text = [found.tokenizer.decode(document.tolist()) for document in documents]
        assert len("".join(text).encode()) == size
    again = load_corpus(config)
    assert numpy.array_equal(again.train, found.train) and again.hash == found.hash


# Configs


def keys_of(config):
    return {name: field.annotation for name, field in config.model_fields.items()}


SCALARS = strategies.one_of(
    strategies.none(),
    strategies.booleans(),
    strategies.integers(-3, 40),
    strategies.integers(),
    strategies.floats(),
    strategies.text(max_size=8),
    strategies.sampled_from(["auto", "cpu", "cosine", "wsd", "bpe", "byte", "1e-4", "1e999", "rope", "none", "a.txt"]),
)
QUICK = {"suppress_health_check": HealthCheck, "phases": [Phase.explicit, Phase.generate]}  # without shrinking
VALUES = SCALARS | strategies.lists(SCALARS, max_size=3) | strategies.dictionaries(strategies.text(max_size=4), SCALARS)


def mappings(config, depth=0):
    """Mappings with some of a config's keys, sometimes another, and values that fit or do not."""
    entries = {}
    for name, annotation in keys_of(config).items():
        inner = isinstance(annotation, type) and issubclass(annotation, FrozenConfig) and name != "position"
        entries[name] = mappings(annotation, depth + 1) | VALUES if inner else VALUES
    if "position" in entries:
        schemes = [mappings(position.Options).map(lambda m, s=scheme: {**m, "scheme": s})
                   for scheme, position in POSITIONS.items()]  # fmt: skip
        entries["position"] = strategies.one_of(strategies.sampled_from(sorted(POSITIONS)), *schemes, VALUES)
    some = strategies.fixed_dictionaries({}, optional=entries)
    stranger = strategies.dictionaries(strategies.text(max_size=6), SCALARS, max_size=1)
    return some | strategies.tuples(stranger, some).map(lambda both: both[0] | both[1])


@pytest.mark.parametrize("section", ["", "train", "model", "data", "wandb"])
def test_any_yaml_survives_a_round_trip_or_is_refused_by_a_key(section, full):
    kind = keys_of(Config)[section] if section else Config

    @settings(max_examples=3000 if full else 100, derandomize=True, database=None, deadline=None, **QUICK)
    @given(mappings(kind))
    @example({"a\x1bb": 1})
    def check(values):
        values = {section: values} if section else values
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "some.yaml"
            path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
            found = outcome(load_config, path)
            if isinstance(found, str):
                names = {*map(str, values), *map(str, values.get(section, {}) if section else ()), *keys_of(kind)}
                shown = {repr(name)[1:40].removesuffix("'") for name in names}
                assert found.startswith(f"{path}: ") and any(name in found for name in shown | {"not YAML"}), found
            else:
                path.write_text(yaml.safe_dump(found.model_dump(mode="json"), allow_unicode=True), encoding="utf-8")
                assert load_config(path) == found

    check()
