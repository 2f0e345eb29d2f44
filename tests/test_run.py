"""A run's folder: what may be started, resumed or overwritten there, its rows and its checkpoints."""

import json
import os
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from base import InputError, find_checkpoint
from configs import load_config
from model.position import Rope
from model.position.base import Position
from tiny import names, run_config, trained
from training.run import RunFolder

CORPUS = SimpleNamespace(source="text.txt", hash="abc", train=[0] * 7, val=[0] * 3, train_bytes=70, val_bytes=30)


def begin(run):
    with run.locked():
        run.start(CORPUS)


@pytest.fixture
def started(tmp_path):
    config = run_config(tmp_path)
    begin(RunFolder(config))
    return config


def test_config_yaml_loads_as_the_config_of_the_run(tmp_path, scheme):
    config = run_config(tmp_path, f"model.position={scheme}", "model.vocab_size=257", "wandb.tags=[ü]")
    begin(RunFolder(config))
    assert load_config(config.folder / "config.yaml") == config


def test_a_run_is_neither_overwritten_nor_resumed_unasked(tmp_path):
    """Nor is anything written by looking at its folder."""
    config = run_config(tmp_path)
    RunFolder(config)
    with pytest.raises(InputError, match="runs/tiny: holds no run to resume"):
        RunFolder(config, resume=True)
    assert not (tmp_path / "runs").exists()
    begin(RunFolder(config))
    with pytest.raises(InputError, match="--resume.*--overwrite.*name="):
        RunFolder(config)
    RunFolder(config, resume=True)
    RunFolder(config, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_other_files_is_left_alone(tmp_path, overwrite):
    """--overwrite with runs_dir or name mistyped must not delete somebody's folder."""
    config = run_config(tmp_path)
    config.folder.mkdir(parents=True)
    (config.folder / "thesis.tex").touch()
    with pytest.raises(InputError, match="not a run"):
        RunFolder(config, overwrite=overwrite)
    assert names(config.folder) == ["thesis.tex"]


@pytest.mark.parametrize(
    "name",
    [".lock", "corpus.json", "metrics.jsonl", "versions.json"]
    + [".corpus.json.partial", ".versions.json.partial", ".config.yaml.partial"],
)
def test_what_a_kill_at_the_start_has_left_is_begun_anew(tmp_path, name):
    config = run_config(tmp_path)
    config.folder.mkdir(parents=True)
    (config.folder / name).touch()
    begin(RunFolder(config))
    assert load_config(config.folder / "config.yaml") == config


def test_overwriting_leaves_nothing_of_the_old_run(tmp_path, started):
    """Of checkpoints that a link has on another disk, the link goes."""
    old = RunFolder(started, overwrite=True)
    old.log({"step": 1})
    (other := tmp_path / "other" / "step_000005").mkdir(parents=True)
    (other / "config.json").touch()
    old.checkpoint(5).parent.symlink_to(other.parent)
    assert old.newest_checkpoint() == old.checkpoint(5)
    begin(old)
    assert old.metrics() == [] and old.newest_checkpoint() is None
    assert (other / "config.json").is_file() and not old.checkpoint(5).parent.is_symlink()


@pytest.mark.parametrize(
    ("key", "place"),
    [("train.init_from", ""), ("train.init_from", "/checkpoints/step_000006"), ("data.tokenizer.folder", "")]
    + [("data.cache_dir", "/cache"), ("data.source", "/*.txt")],
)
def test_a_run_is_not_overwritten_by_one_that_starts_from_it(tmp_path, started, key, place):
    config, before = started, names(started.folder)
    *parts, name = key.split(".")
    changed = {name: f"{started.folder}{place}"}
    for part in reversed(parts):
        inner = config.data.tokenizer if part == "tokenizer" else getattr(config, part)
        changed = {part: inner.model_copy(update=changed)}
    config = config.model_copy(update=changed)
    with pytest.raises(InputError, match=f"^{key}.* is in .*/runs/tiny, which --overwrite would remove"):
        RunFolder(config, overwrite=True)
    RunFolder(config.model_copy(update={"name": "other"}), overwrite=True)
    assert names(started.folder) == before


def undeletable(*_):
    raise PermissionError(13, "Permission denied")


def test_a_run_that_cannot_be_removed_is_not_overwritten(started, monkeypatch):
    run = RunFolder(started, overwrite=True)
    run.checkpoint(5).mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", undeletable)
    with pytest.raises(InputError, match="runs/tiny/checkpoints: cannot be written: Permission denied$"):
        begin(run)
    assert RunFolder.exists(started)


@pytest.mark.parametrize("override", ["runs_dir={file}", "name=file runs_dir={folder}"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, override):
    (tmp_path / "file").touch()
    overrides = [part.format(file=tmp_path / "file", folder=tmp_path) for part in override.split()]
    with pytest.raises(InputError, match="file: expected a folder"):
        begin(RunFolder(run_config(tmp_path, *overrides)))


ALIKE = {"scaling", *Position.Options.model_fields} - {"scheme"}  # null, as if missing, or what all schemes have
ROPE_KEYS = [f"model.position.{key}" for key in Rope.Options.model_fields if key not in ALIKE]


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("seed=1", ["seed"]),
        ("train.learning_rate=0.02", ["train.learning_rate", "train.min_learning_rate"]),
        ("train.batch_size=5", ["train.batch_size"]),
        ("model.hidden_size=32", ["model.hidden_size", "model.head_dim"]),
        ("model.position=none", ROPE_KEYS),
        ("model.position={scheme: rope, base: 500}", ["model.position.base"]),
        ("data.tokenizer.kind=char", ["data.tokenizer.kind"]),
    ],
)
def test_another_experiment_is_told_by_its_keys(tmp_path, started, override, keys):
    run = RunFolder(run_config(tmp_path, override), resume=True)
    assert sorted(run.differing_keys()) == sorted(keys)
    with pytest.raises(InputError, match=keys[0]):
        run.check_same_experiment(CORPUS)


OTHERWISE = {
    "data": dict(cache_dir="x", source="moved.txt", text_column="body"),
    "train": dict(log_every=3, eval_every=3, checkpoint_every=3, keep_checkpoints=3, max_skipped_steps=1, device="auto",
                  compile="true", micro_batch_size=1, threads=5),
    "wandb": dict(mode="offline", tags="[a]"),
}  # fmt: skip


@pytest.mark.parametrize(
    "override", [f"{part}.{key}={value}" for part, keys in OTHERWISE.items() for key, value in keys.items()]
)
def test_how_a_run_is_watched_may_change(tmp_path, started, override):
    RunFolder(run_config(tmp_path, override), resume=True).check_same_experiment(CORPUS)


def test_more_steps_are_the_same_experiment_and_another_text_is_not(tmp_path, started):
    run = RunFolder(run_config(tmp_path, "train.steps=60"), resume=True)
    run.check_same_experiment(CORPUS)
    with pytest.raises(InputError, match="data.source"):
        run.check_same_experiment(SimpleNamespace(hash="abd"))


def test_a_row_that_a_crash_cut_off_is_forgotten(started):
    run = RunFolder(started, resume=True)
    for step in (1, 2, 3):
        run.log({"step": step, "tokens": 9, "train_loss": 0.1})
    with run.metrics_file.open("a") as file:
        file.write('{"step": 4, "tra')
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    run.drop_rows_after(2)
    run.log({"step": 3, "tokens": 9, "train_loss": 1 / 3})
    lines = map(json.loads, run.metrics_file.read_text(encoding="utf-8").splitlines())
    assert [(row["step"], row["train_loss"]) for row in lines] == [(1, 0.1), (2, 0.1), (3, 1 / 3)]


def complete(run, *steps):
    for step in steps:
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "config.json").touch()


def test_the_newest_checkpoint_is_found_by_number_and_only_if_complete(started):
    run = RunFolder(started, resume=True)
    assert run.newest_checkpoint() is None
    complete(run, 900_000, 1_000_000)  # seven digits sort before six as text
    (run.checkpoint(2_000_000).parent / ".step_2000000.partial").mkdir()
    assert run.newest_checkpoint() == run.checkpoint(1_000_000)
    run.prune()
    assert names(run.checkpoint(1).parent) == ["step_1000000"]


def test_checkpoints_that_may_not_be_listed_are_not_taken_for_none(started, monkeypatch):
    """A resumed run would begin anew, and one that is pruned would lose them all. Refused as the system would."""
    run = RunFolder(started, resume=True)
    complete(run, 1, 2)

    def refuse(place=".", *, real):
        if Path(place).name == "checkpoints":
            raise PermissionError(13, "Permission denied", str(place))
        return real(place)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, partial(refuse, real=getattr(os, name)))
    for method in (run.newest_checkpoint, run.prune, lambda: find_checkpoint(run.path)):
        with pytest.raises(InputError, match="checkpoints: cannot be read: Permission denied$"):
            method()


def test_nothing_but_our_own_folders_is_pruned(tmp_path, started):
    """What a file manager, a network file system or the user puts beside the checkpoints."""
    run = RunFolder(started, resume=True)
    complete(run, 1, 2)
    place, other = run.checkpoint(1).parent, tmp_path / "other"
    other.mkdir()
    for file in (".DS_Store", ".nfs0001", "step_000003"):
        (place / file).touch()
    for link, to in {"latest": place / "step_000002", "step_000004": other}.items():
        (place / link).symlink_to(to)
    for folder in ("my_backup", "step_000001_copy", "step_000001.old"):
        (place / folder).mkdir()
    kept = {*names(place)} - {"step_000001"}
    for left in ("step_000005.diverged", ".step_000006.partial", ".step_000007.old", ".step_000008.diverged.removed",
                 "..step_000009.partial.removed"):  # fmt: skip
        (place / left).mkdir()
    run.prune()
    assert {*names(place)} == kept and other.is_dir()


def test_a_checkpoint_that_cannot_be_removed_is_one_line_and_is_removed_later(started, monkeypatch, capsys):
    run = RunFolder(started, resume=True)
    complete(run, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", undeletable)
        run.prune()
    assert capsys.readouterr().err == f"warning: {run.checkpoint(1)}: cannot be removed: Permission denied\n"
    assert run.newest_checkpoint() == run.checkpoint(2)
    run.prune()
    assert names(run.checkpoint(1).parent) == ["step_000002"]


def test_rows_that_decide_about_checkpoints_are_on_the_disk_before_these(started, monkeypatch):
    """So that a loss of power does not leave a checkpoint without the rows before it, or none for the best."""
    run, flushed, real = RunFolder(started, resume=True), [], os.fsync

    def flush(descriptor):
        real(descriptor)
        partial = run.path / ".metrics.jsonl.partial"
        flushed.append((partial if partial.exists() else run.metrics_file).read_text())

    monkeypatch.setattr(os, "fsync", flush)
    run.log({"step": 1, "tokens": 1, "train_loss": 2.0})
    assert not flushed, "for each row it would take long"
    run.log({"step": 1, "tokens": 1, "val_loss": 2.0, "val_bits_per_byte": 1.0})
    run.log({"step": 2, "tokens": 2, "train_loss": 2.0})
    run.keep_rows()
    run.log({"step": 2, "tokens": 2, "diverged": "step 2: loss nan"})
    lines = run.metrics_file.read_text().splitlines(keepends=True)
    assert len(flushed) == 3 and len(lines) == 4
    run.drop_rows_after(1)
    assert flushed[3] == "".join(lines[:2]) == run.metrics_file.read_text()


def test_the_rows_are_flushed_before_the_checkpoint_of_their_step_is_there(tmp_path, monkeypatch):
    there, real = [], RunFolder.keep_rows

    def keep_rows(run):
        there.append(names(run.path / "checkpoints") if (run.path / "checkpoints").exists() else [])
        real(run)

    monkeypatch.setattr(RunFolder, "keep_rows", keep_rows)
    trained(tmp_path, "train.checkpoint_every=3", "train.keep_checkpoints=2")
    assert there == [[], ["step_000003"]]
