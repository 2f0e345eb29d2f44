"""What ends a run from outside: signals, kills, a second process, a full disk."""

import multiprocessing
import os
import random
import re
import resource
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

import train as program
from base import InputError, complete_checkpoints
from data.corpus import load_corpus
from model.checkpoint import load_checkpoint, load_trainer
from tiny import (
    Stopped,
    assert_same_bits,
    before_step,
    call,
    config_file,
    contents,
    files_of_at_most,
    names,
    rows,
    run_config,
    trained,
    whole_and_other,
)
from training import evaluation
from training.loop import Trainer, train
from training.run import RunFolder

# Signals


def signals_in_step(step, *numbers):
    """This process gets these signals while it is at a step."""
    return before_step(step, lambda _: [os.kill(os.getpid(), number) for number in numbers])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("step", [1, 4, 6])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(tmp_path, capsys, number, status, step):
    """And the line that it ends with makes the run go on, to the same bits."""
    arguments = ["train.eval_every=2", "train.log_every=3"]
    whole, stopped = whole_and_other(tmp_path, *arguments)
    before = signal.getsignal(number)
    with signals_in_step(step, number):
        assert call(program, config_file(tmp_path), *arguments, "name=other") == status
    assert signal.getsignal(number) == before
    assert names(stopped.folder / "checkpoints") == [f"step_00000{step}"]
    last = capsys.readouterr().err.splitlines()[-1]
    file = shlex.quote(str(stopped.folder / "config.yaml"))
    assert last == f"stopped after step {step} of 6; to continue: python train.py {file} --resume"
    assert call(program, *shlex.split(last.split("train.py ")[1])) == 0
    assert_same_bits(stopped, whole)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_run_outlives_what_it_was_started_to_ignore(tmp_path, number):
    """A terminal under nohup; and beside others in a script, a Ctrl-C, also after another signal."""
    signal.signal(number, signal.SIG_IGN)
    with signals_in_step(3, number):
        assert call(program, config_file(tmp_path)) == 0
    with signals_in_step(3, signal.SIGTERM, number):
        assert call(program, config_file(tmp_path), "name=other") == 143
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_sigint_after_another_signal_stops_at_once(tmp_path, capsys, first):
    before = signal.getsignal(signal.SIGINT)
    with signals_in_step(3, first, signal.SIGINT):
        assert call(program, config_file(tmp_path), "train.checkpoint_every=2") == 130
    assert capsys.readouterr().err.endswith("interrupted\n")
    assert names(run_config(tmp_path).folder / "checkpoints") == ["step_000002"]
    assert signal.getsignal(signal.SIGINT) == before


EVALUATIONS = [
    (["train.eval_every=4"], 4),
    (["train.eval_every=4", "train.checkpoint_every=4"], 4),
    (["train.eval_every=2", "train.checkpoint_every=2", "train.keep_checkpoints=2"], 4),
    ([], 6),
]


@pytest.fixture
def small_passes(monkeypatch):
    """Seven for each evaluation."""
    monkeypatch.setattr(evaluation, "EVAL_TOKENS", 64)


@contextmanager
def in_evaluation(step, action):
    """While it is entered, action() is called in the second pass of the evaluation after a step; gives all passes."""
    whole, one_pass, passes = Trainer.evaluate, evaluation.token_losses, []

    def token_losses(*given):
        passes.append(given)
        if len(passes) == 2:
            action()
        return one_pass(*given)

    def evaluate(trainer):
        with mock.patch.object(evaluation, "token_losses", token_losses if trainer.step == step else one_pass):
            whole(trainer)

    with mock.patch.object(Trainer, "evaluate", evaluate):
        yield passes


@pytest.mark.parametrize(("every", "step"), EVALUATIONS)
def test_a_signal_during_an_evaluation_ends_it_and_it_is_done_later(tmp_path, small_passes, capsys, every, step):
    """With a checkpoint. A scheduler's grace is a minute or less, and an evaluation may take longer."""
    whole, stopped = whole_and_other(tmp_path, *every)
    with in_evaluation(step, lambda: os.kill(os.getpid(), signal.SIGTERM)) as passes:
        assert call(program, config_file(tmp_path), *every, "name=other") == 143
    assert len(passes) == 2
    assert f"step_00000{step}" in names(stopped.folder / "checkpoints")
    assert not RunFolder(stopped, resume=True).is_finished()
    again = shlex.split(capsys.readouterr().err.splitlines()[-1].split("train.py ")[1])
    with in_evaluation(step, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert call(program, *again) == 143, "while what was missing is done"
    assert call(program, *again) == 0
    assert_same_bits(stopped, whole)
    assert names(stopped.folder / "checkpoints") == names(whole.folder / "checkpoints")


@pytest.mark.parametrize(("every", "step"), EVALUATIONS[1:])
def test_a_run_killed_during_an_evaluation_is_evaluated_when_it_goes_on(tmp_path, small_passes, every, step):
    """Its steps are done and saved, its rows are not all there; nor is it finished."""
    whole, killed = whole_and_other(tmp_path, *every)
    with pytest.raises(Stopped), in_evaluation(step, mock.Mock(side_effect=Stopped)):
        train(killed)
    run = RunFolder(killed, resume=True)
    assert run.newest_checkpoint() == run.checkpoint(step) and not run.is_finished()
    train(killed, resume=True)
    assert_same_bits(killed, whole)
    assert names(killed.folder / "checkpoints") == names(whole.folder / "checkpoints") and run.is_finished()


def test_a_run_outside_the_main_thread_trains_without_signals(tmp_path):
    result = []
    thread = threading.Thread(target=lambda: result.append(trained(tmp_path)))
    thread.start()
    thread.join()
    assert rows(result[0].folder)[-1]["step"] == 6


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_process_of_its_own_ends_with_the_status_of_the_signal(tmp_path, processes, number, status):
    config, errors = run_config(tmp_path, "train.steps=1000000"), tmp_path / "stderr"
    process = processes.Process(target=run_program, args=(errors, config_file(tmp_path), "train.steps=1000000"))
    process.start()
    metrics = config.folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size or not process.is_alive())
    os.kill(process.pid, number)
    process.join(600)
    assert process.exitcode == status
    assert "stopped after step" in errors.read_text().splitlines()[-1]


def wait_until(happened, seconds=600):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)


# Processes: forked from one that has torch loaded, for a start takes two seconds otherwise


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["test_stopping"])
    return context


def train_quietly(config, resume):
    with open(os.devnull, "w") as sys.stderr:
        torch.set_num_threads(1)
        train(config, resume=resume)


def run_program(errors, *arguments):
    with errors.open("w") as sys.stderr:
        torch.set_num_threads(1)
        sys.exit(call(program, *arguments))


def hold(config, held):
    with RunFolder(config).locked():
        held.set()
        time.sleep(600)


def test_a_run_folder_has_one_process_at_a_time_unless_that_one_is_dead(tmp_path, processes):
    config, held = run_config(tmp_path), processes.Event()
    first = processes.Process(target=hold, args=(config, held))
    first.start()
    assert held.wait(600)
    with pytest.raises(InputError, match=f"{re.escape(str(config.folder))}: another process is training there"):
        train(config)
    assert names(config.folder) == [".lock"]
    first.kill()
    first.join()
    train(config)
    with RunFolder(config, resume=True).locked():
        for how in ({"resume": True}, {"overwrite": True}):
            before = contents(config.folder)
            with pytest.raises(InputError, match="another process"):
                train(config, **how)
            assert contents(config.folder) == before
    train(config, overwrite=True)


def test_a_run_that_another_process_has_made_meanwhile_is_not_overwritten(tmp_path):
    """Both saw no run; the slower one gets the lock when the faster has finished."""
    config = run_config(tmp_path)
    slower = RunFolder(config)
    train(config)
    with pytest.raises(InputError, match="already holds a run"), slower.locked():
        pass


def start(processes, config):
    process = processes.Process(target=train_quietly, args=(config, RunFolder.exists(config)))
    process.start()
    return process


def is_writing(config):
    """Whether a checkpoint lies there unfinished."""
    return any(config.folder.glob("checkpoints/.step_*.partial"))


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tmp_path, processes, full):
    """Every third kill waits until a checkpoint is being written. A run that ends is compared, and begun anew."""
    every = ["train.steps=24", "train.checkpoint_every=2", "train.eval_every=5", "train.micro_batch_size=3"]
    kills = 50 if full else 4
    whole = run_config(tmp_path, "name=whole", *every)
    start(processes, whole).join()
    begun = time.monotonic()
    start(processes, run_config(tmp_path, "name=second", *every)).join()
    duration, rng = time.monotonic() - begun, random.Random(0)
    killed = while_writing = finished = 0
    config = run_config(tmp_path, "name=killed0", *every)
    while killed < kills or not finished:
        process, aims_at_a_write = start(processes, config), killed % 3 == 2
        if killed < kills:
            if aims_at_a_write:
                wait_until(lambda: is_writing(config) or not process.is_alive())
                time.sleep(rng.uniform(0, 0.003))
            else:
                process.join(rng.uniform(0, duration))
        else:
            process.join()
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode == 0:
            assert_same_bits(config, whole)
            assert names(config.folder / "checkpoints") == names(whole.folder / "checkpoints")
            finished += 1
            config = run_config(tmp_path, f"name=killed{finished}", *every)
        else:
            assert process.exitcode == -signal.SIGKILL
            killed, while_writing = killed + 1, while_writing + is_writing(config)
            for checkpoint in complete_checkpoints(config.folder).values():
                load_checkpoint(checkpoint), load_trainer(checkpoint)
    print(f"{killed} kills, {while_writing} of them during a checkpoint's write, {finished} runs finished")
    assert while_writing or not full


# A full disk


@pytest.mark.parametrize("missing", ["model.safetensors", "trainer.pt"])
def test_a_disk_that_fills_up_during_a_checkpoint_leaves_the_one_before(tmp_path, capsys, missing):
    every = ["train.checkpoint_every=2"]
    whole, full = whole_and_other(tmp_path, *every)
    sizes = {path.name: path.stat().st_size for path in (whole.folder / "checkpoints" / "step_000006").iterdir()}
    smaller = max(size for name, size in sizes.items() if size < sizes[missing])
    with signals_in_step(3, signal.SIGTERM), pytest.raises(SystemExit):
        train(full)
    capsys.readouterr()
    with files_of_at_most((smaller + sizes[missing]) // 2):
        assert call(program, config_file(tmp_path), *every, "name=other", "--resume") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.startswith(f"error: {full.folder / 'checkpoints' / 'step_000004'}: cannot be written: ")
    assert "File too large" in line
    assert names(full.folder / "checkpoints") == ["step_000003"]
    load_checkpoint(full.folder / "checkpoints" / "step_000003")
    train(full, resume=True)
    assert_same_bits(full, whole)


def test_a_disk_full_for_metrics_is_one_line_and_the_run_goes_on_later(tmp_path):
    whole, full = whole_and_other(tmp_path, "train.checkpoint_every=3")
    log = RunFolder.log

    def log_on_a_full_disk(run, row):
        with files_of_at_most(run.metrics_file.stat().st_size + 20 if row["step"] == 5 else resource.RLIM_INFINITY):
            log(run, row)

    refusal = pytest.raises(InputError, match="metrics.jsonl: cannot be written: File")
    with mock.patch.object(RunFolder, "log", log_on_a_full_disk), refusal:
        train(full)
    assert not (full.folder / "metrics.jsonl").read_text().endswith("\n"), "half a row"
    train(full, resume=True)
    assert_same_bits(full, whole)


def test_a_disk_that_is_full_for_the_tokens_is_one_line_and_leaves_nothing(tmp_path, capsys):
    config = run_config(tmp_path)
    with files_of_at_most(3000):
        assert call(program, config_file(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: data.cache_dir {config.data.cache_dir!r}: cannot be written: ")
    assert error.count("\n") == 1 and "File too large" in error
    left = [name for name in names(tmp_path / "cache") if not name.endswith(".lock")]
    assert left == [] and not config.folder.exists()
    assert len(load_corpus(config.data).train) == 3420
