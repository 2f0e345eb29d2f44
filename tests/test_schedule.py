"""Many runs: one after the other, side by side, or as commands for somebody else's scheduler."""

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from test_compare import comparison_file

import compare as program
from base import InputError
from comparison import commands, schedule
from comparison.design import PlannedRun, load_comparison, shell
from comparison.measure import Corpora
from comparison.schedule import Progress, announce, train_all
from comparison.tuning import next_runs
from configs import load_config
from tiny import Stopped, call, killed_before_step, rows, run_config, train_until, weights
from training.loop import train
from training.processes import RENDEZVOUS, STARTED_BY_TORCHRUN
from training.run import RunFolder

ROOT = Path(__file__).parent.parent


def planned(folder, *overrides, **changes):
    """The runs of a comparison whose learning rates are given."""
    return next_runs(load_comparison(str(comparison_file(folder, **changes)), list(overrides)))


def test_the_list_has_a_command_for_each_run_that_trains_just_it(tmp_path, capsys, monkeypatch):
    """Through a shell's eyes: paths with spaces and quotes, and mappings, come out as they went in."""
    folder = tmp_path / 'it\'s a "place"'
    folder.mkdir()
    rope = {"model.position": {"scheme": "rope", "base": 500}}
    variants = {"rope": rope, "theta": {"model.position": "learned_theta"}}
    changes = {"variants": variants, "learning_rates": [0.001, 1e-05], "tuning_seeds": [0, 3], "seeds": [1]}
    path = comparison_file(folder, **changes)
    monkeypatch.chdir(ROOT)
    assert call(program, path, "--list", "train.grad_clip=null") == 0
    lines = capsys.readouterr().out.splitlines()
    every = [run.config for run in planned(folder, "train.grad_clip=null", **changes)]
    assert len(lines) == len(every) == 8
    for line, config in zip(lines, every):
        python, script, file, *overrides = shlex.split(line)
        assert (python, script) == ("python", "train.py")
        assert load_config(file, overrides) == config
    assert len({config.folder for config in every}) == 8
    with killed_before_step(2):
        train(every[1])
    assert call(program, path, "--list", "train.grad_clip=null") == 0
    assert capsys.readouterr().out.splitlines() == [lines[0], f"{lines[1]} --resume", *lines[2:]]
    assert every[0].name == "rope-lr1e-05-seed0" and every[0].train.learning_rate == 1e-05


def test_the_list_names_the_program_from_anywhere(tmp_path, monkeypatch):
    """And torchrun before it where the config asks for several processes."""
    monkeypatch.chdir(tmp_path)
    train, many = str(ROOT / "train.py"), run_config(tmp_path, "train.parallel=fsdp")
    assert shlex.split(shell(PlannedRun(run_config(tmp_path), ["a b"]))) == ["python", train, "a b"]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "auto", train, "a b", "--resume"]
    assert shlex.split(shell(PlannedRun(many, ["a b"]), "--resume")) == torchrun


def test_a_comparison_is_no_part_of_a_group_of_processes(tmp_path, monkeypatch, capsys):
    for name in ("WORLD_SIZE", *RENDEZVOUS):
        monkeypatch.setenv(name, "2")
    assert call(program, comparison_file(tmp_path)) == 2
    assert "without torchrun" in capsys.readouterr().err


def test_processes_side_by_side_are_no_group(tmp_path, monkeypatch):
    """Even in a job that once was one of torchrun's, or each would wait for others."""
    for key in STARTED_BY_TORCHRUN:
        monkeypatch.setenv(key, "1")
    started = mock.Mock(side_effect=InputError("stop"))
    monkeypatch.setattr(schedule.subprocess, "Popen", started)
    with pytest.raises(InputError, match="stop"):
        schedule.train_all([PlannedRun(run_config(tmp_path), [])], jobs=2)
    given = started.call_args.kwargs["env"]
    assert not given.keys() & set(STARTED_BY_TORCHRUN) and "PATH" in given


def test_side_by_side_gives_the_same_runs(tmp_path, monkeypatch):
    """Two runs, of which one was half done, with a thread each; then nothing is left to do."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    changes = {"seeds": [0], "settings": {"train.steps": 4, "train.checkpoint_every": 2}}
    changes["variants"] = {scheme: {"model.position": scheme} for scheme in ("none", "rope")}
    changes["baseline"] = "none"
    for folder in (alone, together):
        folder.mkdir()
    train_all(planned(alone, **changes), 1)
    runs = planned(together, **changes)
    with killed_before_step(4):
        train(runs[1].config)
    train_all(runs, 2)
    for run in runs:
        one, two = (folder / "runs" / "cmp" / run.config.name for folder in (alone, together))
        assert weights(one) == weights(two) and rows(one) == rows(two)
    monkeypatch.setattr(schedule, "TRAIN", None)
    train_all(runs, 2)


STAND_IN = """
import sys, time
if 'name="bad-seed0"' in sys.argv:
    sys.stderr.write("bad: 0%\\rbad: 50%\\n" "error: model: too large, and so on\\n")
    sys.exit(2)
time.sleep(600)
"""


def test_one_that_fails_ends_all_with_its_line(tmp_path, monkeypatch):
    """Of programs in place of train.py, which takes seconds to start."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(schedule, "TRAIN", tmp_path / "stand_in.py")
    runs = planned(tmp_path, variants={"bad": {}, "long": {}}, baseline="bad", seeds=[0])
    begun, real = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: begun.append(real(*given, **more)) or begun[-1])
    with pytest.raises(InputError, match="bad-seed0: model: too large, and so on$"):
        train_all(runs, 2)
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)


def test_a_failure_other_than_diverging_ends_all_in_one_process_too(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise InputError("no room")

    monkeypatch.setattr(schedule, "train", fail)
    with pytest.raises(InputError, match="no room"):
        train_all(planned(tmp_path), 1)


def test_a_stopped_comparison_leaves_no_training_behind(tmp_path):
    """A terminal tells all processes of a group to stop; a scheduler or `kill` tells only the first."""
    path = comparison_file(tmp_path, seeds=[0], settings={"train.steps": 1_000_000, "train.eval_every": None})
    command = [sys.executable, ROOT / "compare.py", path, "--jobs", "2"]
    logs = [tmp_path / "runs" / "cmp" / name / "metrics.jsonl" for name in ("rope-seed0", "theta-seed0")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stopped:
        while not all(log.exists() and log.stat().st_size for log in logs):
            assert stopped.poll() is None, stopped.stderr.read()
            time.sleep(0.1)
        stopped.terminate()
        assert stopped.wait(600) == 143
    for log in logs:  # whose folder a living process would have locked
        with RunFolder(load_config(log.parent / "config.yaml"), resume=True).locked():
            pass


def test_the_threads_are_shared_out(tmp_path, monkeypatch):
    given, alive = [], []

    class Nothing:
        def __init__(self, command, env, **_):
            given.append((command, env["OMP_NUM_THREADS"]))
            alive.append(alive[-1] + 1 if alive else 1)

        def poll(self):
            alive.append(alive[-1] - 1)
            return 0

    monkeypatch.setattr(schedule.subprocess, "Popen", Nothing)
    monkeypatch.setattr(schedule, "POLL_SECONDS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 12)
    runs = planned(tmp_path)
    train_all(runs, 4)
    assert [threads for _, threads in given] == ["3"] * 4
    train_all(runs, 64)
    assert [threads for _, threads in given[4:]] == ["1"] * 4
    alive.clear()
    train_all(runs, 2)
    assert given[-1][1] == "6"
    assert alive == [1, 2, 1, 0, 1, 2, 1, 0], "four runs, two at a time"


def test_the_progress_line_says_which_run_and_the_time_left(tmp_path, monkeypatch):
    configs = [run.config for run in planned(tmp_path)]
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    progress = Progress(configs)
    assert progress.line(configs[:1]) == f"run 1 of 4: {configs[0].folder}, time left unknown"
    train(configs[0])
    progress.update(configs[0])
    monkeypatch.setattr(time, "monotonic", lambda: 600.0)
    assert progress.line(configs[1:3]).startswith(f"runs 2, 3 of 4: {configs[1].folder}, {configs[2].folder}, ")
    assert progress.time_left() == "about 30 min left"
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0)
    assert progress.time_left() == "about 3.0 h left"
    again = Progress(configs)
    assert again.left[configs[0].name] == 0 and again.at_start == 3 * 4 * 64


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected either a CONFIG.yaml or --runs"),
        (["a.yaml", "--runs", "b"], "expected either a CONFIG.yaml or --runs"),
        (["a.yaml", "--jobs", "0"], "--jobs: expected at least 1, got 0"),
        (["a.yaml", "--jobs", "two"], "two"),
        (["a.yaml", "--out", "b"], "--out"),
        (["--runs", "b", "--list"], "--list"),
    ],
)
def test_arguments_that_cannot_be_are_refused(capsys, arguments, expected):
    assert call(program, *arguments) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1


def test_the_base_is_named_from_the_current_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "cmp.yaml"
    comparison_file(tmp_path)
    values = yaml.safe_load((tmp_path / "cmp.yaml").read_text())
    path.write_text(yaml.safe_dump({**values, "base": "../base.yaml"}))
    run = next_runs(load_comparison(str(path), []))[0]
    assert Path(run.arguments[0]).samefile(tmp_path / "base.yaml")


def test_the_time_of_all_runs_is_said_before_the_first(tmp_path, monkeypatch, capsys):
    """At 3 s for the baseline's 256 tokens: 4 tuning runs and 4 reported ones of the same size, one of them half done."""
    rehearsed = []
    monkeypatch.setattr(schedule, "rehearse", lambda config, _: rehearsed.append(config) or (3.0, []))
    changes = {"learning_rates": [0.01, 0.02], "tuning_seeds": [5]}
    comparison = load_comparison(str(comparison_file(tmp_path, **changes)), ["train.checkpoint_every=1"])
    train_until(3, next_runs(comparison)[1].config)
    capsys.readouterr()
    announce([comparison, comparison], Corpora())
    said = capsys.readouterr().err
    assert said.startswith("16 runs to train: about 45 s, by some steps of the baseline, and then ")
    assert [config.name for config in rehearsed] == ["rope-lr0.01-seed0"] * 2


def test_the_time_is_said_before_anything_is_written(tmp_path, monkeypatch):
    def stop(*_):
        raise Stopped

    monkeypatch.setattr(commands, "announce", stop)
    with pytest.raises(Stopped):
        commands.compare(load_comparison(str(comparison_file(tmp_path)), []))
    assert not (tmp_path / "runs").exists()


def test_only_the_first_run_of_many_says_what_is_to_come(tmp_path, capsys):
    comparison = load_comparison(str(comparison_file(tmp_path)), [])
    train_all(next_runs(comparison), 1)
    assert capsys.readouterr().err.count(" passes over the text") == 1
    announce([comparison], Corpora())
    assert capsys.readouterr().err == "", "all are done"


def test_the_base_is_found_beside_the_file_or_here_or_among_the_project_s_own(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "cmp.yaml"
    comparison_file(tmp_path)
    values = yaml.safe_load((tmp_path / "cmp.yaml").read_text())
    monkeypatch.chdir(tmp_path)

    def base(name):
        path.write_text(yaml.safe_dump({**values, "base": name}), encoding="utf-8")
        return Path(next_runs(load_comparison(str(path), []))[0].arguments[0])

    assert base("quickstart.yaml") == ROOT / "configs" / "quickstart.yaml"
    assert base("base.yaml").samefile(tmp_path / "base.yaml")
    shutil.copy("base.yaml", "inner")
    assert base("base.yaml") == tmp_path / "inner" / "base.yaml"
    with pytest.raises(InputError, match=r"inner/none.yaml: No such file"):
        base("none.yaml")
