"""One run over several processes. Most are forked here, with a store as torchrun's agent has it; one test starts torchrun."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
from torch.distributed import TCPStore

import train as program
from base import InputError, find_checkpoint
from configs import TrainConfig, load_config
from model.checkpoint import load_checkpoint, load_trainer, save_checkpoint
from model.config import ModelConfig
from model.position import POSITIONS
from model.transformer import Transformer
from tiny import around_step, before_step, call, config_file, rows, run_config, trained, weights
from training import loop
from training import ranks as ranks_module
from training.alone import ALONE
from training.evaluation import evaluate
from training.machine import pick_engine
from training.optimizer import build_optimizer
from training.processes import STARTED_BY_TORCHRUN, joined
from training.run import RunFolder
from training.step import optimizer_step


class Ranks:
    """Starts processes that are to find each other, and waits for them; `said` has the stderr of each."""

    def __init__(self, folder: Path):
        self.folder, self.launched = folder, 0
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["test_ranks", "training.ranks"])

    def __call__(self, size, function, *arguments) -> list[int]:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        shared |= {"WORLD_SIZE": str(size), "TORCHELASTIC_RESTART_COUNT": "0"}
        self.launched += 1
        errors = [self.folder / f"stderr-{self.launched}-{rank}" for rank in range(size)]
        environments = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        started = [
            self.context.Process(target=in_rank, args=(environment, file, function, *arguments))
            for environment, file in zip(environments, errors)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(300)
        assert not any(process.is_alive() for process in started)
        self.said = [file.read_text(encoding="utf-8") for file in errors]
        return [process.exitcode for process in started]


def in_rank(environment, errors, function, *arguments):
    os.environ.update(environment)
    torch.set_num_threads(1)
    with errors.open("w", encoding="utf-8") as sys.stderr, open(os.devnull, "w") as sys.stdout:
        try:
            status = function(*arguments)
        except Exception:
            traceback.print_exc()
            raise
        sys.exit(status)


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


def run(*arguments):
    return call(program, *arguments)


def losses(folder):
    return [row["train_loss"] for row in rows(folder) if "train_loss" in row]


def state(folder):
    checkpoint = find_checkpoint(folder)
    return load_checkpoint(checkpoint).state_dict() | {"trainer": load_trainer(checkpoint)}


# What comes out


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_ddp_ranks_have_the_bits_of_one_process_with_half_the_micro_batch(tmp_path, ranks, optimizer):
    """Weights and moments, also where a scheme is dropped on the way; the loss is a sum of other parts."""
    settings = [f"train.optimizer={optimizer}", "model.position=learned_theta", "train.position_until=0.7"]
    one = trained(tmp_path, "name=one", "train.micro_batch_size=2", *settings)
    assert ranks(2, run, config_file(tmp_path), "name=two", "train.parallel=ddp", *settings) == [0, 0]
    two = run_config(tmp_path, "name=two")
    assert weights(one.folder) == weights(two.folder)
    torch.testing.assert_close(state(two.folder), state(one.folder), rtol=0, atol=0)
    assert losses(two.folder) == pytest.approx(losses(one.folder), rel=1e-6)
    assert rows(two.folder)[-1]["val_loss"] == pytest.approx(rows(one.folder)[-1]["val_loss"], rel=1e-6)


@pytest.mark.parametrize(("engine", "size"), [("ddp", 2), ("ddp", 4), ("fsdp", 2)])
def test_losses_do_not_depend_on_the_number_of_processes(tmp_path, ranks, engine, size):
    settings = ["train.steps=50", "train.optimizer=muon"]
    one = trained(tmp_path, "name=one", *settings)
    assert ranks(size, run, config_file(tmp_path), "name=many", f"train.parallel={engine}", *settings) == [0] * size
    many = run_config(tmp_path, "name=many")
    assert losses(many.folder) == pytest.approx(losses(one.folder), abs=1e-5)
    assert [row["tokens"] for row in rows(many.folder)] == [row["tokens"] for row in rows(one.folder)]


SHAPE = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
BATCH = [torch.randint(0, 48, (4, 12), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]


def one_step(scheme, optimizer, engine=ALONE, **shape):
    """Weights, loss and norm after a step of SGD as large as the gradient, or one of Muon."""
    config = ModelConfig(**SHAPE, position=scheme, initializer_range=0.2, max_position_embeddings=16, **shape)
    model = engine.place(lambda: Transformer(config), torch.device("cpu"))
    settings = TrainConfig(batch_size=4, grad_clip=0.5, optimizer="muon", min_learning_rate=0.0)
    if optimizer == "muon":
        made, rate = build_optimizer(model, settings, engine), 0.01
    else:
        made, rate = torch.optim.SGD(model.parameters()), 1.0
    result = optimizer_step(model, made, *BATCH, rate, settings, engine)
    return {"weights": engine.whole(model).state_dict(), "result": torch.tensor(result[:2])}


CASES = [*((scheme, "sgd", {}) for scheme in POSITIONS), ("rope", "sgd", {"tie_word_embeddings": False})]
CASES += [("rope", "muon", {"num_key_value_heads": 2}), ("rope", "sgd", {"attention": "linear"})]


def all_cases(file):
    with joined():
        for name, kind in ranks_module.ENGINES.items():
            engine = kind()
            found = [one_step(*case[:2], engine, **case[2]) for case in CASES]
            if not engine.rank:
                torch.save(found, file.with_name(name))


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_processes_start_from_one_folder(tmp_path, ranks, engine):
    first = trained(tmp_path, "name=first").folder
    settings = [f"data.tokenizer={{folder: '{first}'}}", f"train.init_from='{first}'"]
    one = trained(tmp_path, "name=one", *settings)
    assert ranks(2, run, config_file(tmp_path), "name=two", f"train.parallel={engine}", *settings) == [0, 0], ranks.said
    two = run_config(tmp_path, "name=two")
    assert losses(two.folder) == pytest.approx(losses(one.folder), rel=1e-5)
    assert losses(one.folder)[0] < losses(first)[0] - 0.01, "where the first had come to"


def test_gradients_of_one_step_are_those_of_one_process(tmp_path, ranks):
    """For every scheme and both engines, with their norm, by which they are clipped; Muon's own step in each layer, too."""
    assert ranks(2, all_cases, tmp_path / "found") == [0, 0], ranks.said
    expected = [one_step(*case[:2], **case[2]) for case in CASES]
    for engine in ("ddp", "fsdp"):
        for case, found, one in zip(CASES, torch.load(tmp_path / engine), expected, strict=True):
            named = f"{engine} {case}"
            near = 2e-7 if case[1] == "muon" else 1e-7
            torch.testing.assert_close(
                found, one, atol=near, rtol=1e-6, msg=lambda text, named=named: f"{named}: {text}"
            )


def odd_evaluation(engine, packed):
    """Over 23 windows, or documents of 1 to 17 tokens: neither is a multiple of two."""
    tokens = torch.randint(1, 48, (23 * 16 + 5,), generator=torch.Generator().manual_seed(2)).numpy()
    if not packed:
        tokens[numpy.cumsum(numpy.arange(1, 18)) - 1] = tokens[0] = 0
    config = ModelConfig(**SHAPE, initializer_range=0.2, max_position_embeddings=16)
    model = engine.place(lambda: Transformer(config), torch.device("cpu"))
    return evaluate(model, tokens, 16, end_of_text=None if packed else 0, engine=engine)


def evaluations(file):
    with joined():
        found = [odd_evaluation(kind(), packed) for kind in ranks_module.ENGINES.values() for packed in (True, False)]
        file.with_name(f"found-{os.environ['RANK']}").write_text(json.dumps(found))


def test_an_evaluation_shared_out_covers_every_token_once(tmp_path, ranks):
    """And all processes have its result."""
    assert ranks(3, evaluations, tmp_path / "found") == [0, 0, 0], ranks.said
    expected = [odd_evaluation(ALONE, packed) for packed in (True, False)] * 2
    for rank in range(3):
        assert json.loads((tmp_path / f"found-{rank}").read_text()) == pytest.approx(expected, rel=1e-6)


# Going on


def stop_in(rank, step, number, *arguments):
    """A signal that one rank alone receives, in a step. None may end before the checkpoint is there, which takes a while."""
    with ExitStack() as stack:
        if os.environ["RANK"] == str(rank):
            stack.enter_context(before_step(step, lambda _: os.kill(os.getpid(), number)))
        stack.enter_context(
            mock.patch.object(loop, "save_checkpoint", lambda *given: time.sleep(1) or save_checkpoint(*given))
        )
        status = run(*arguments)
    assert find_checkpoint(load_config(*arguments[:1], arguments[1:]).folder)
    return status


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, ranks, engine):
    """From a signal that one rank received: all end with its status after one checkpoint. Then with one process, then two."""
    settings = [config_file(tmp_path), "name=many", f"train.parallel={engine}", "train.micro_batch_size=2"]
    settings += ["train.optimizer=muon", "model.position=learned_theta", "train.position_until=0.7"]
    one = trained(tmp_path, "name=one", *settings[3:])
    assert ranks(2, stop_in, 1, 2, signal.SIGTERM, *settings) == [143, 143], ranks.said
    assert [len(re.findall("stopped after step 2 of 6; to continue: torchrun", said)) for said in ranks.said] == [1, 0]
    folder = run_config(tmp_path, "name=many").folder
    with before_step(4, lambda _: os.kill(os.getpid(), signal.SIGINT)):
        assert call(program, *settings, "--resume") == 130
    assert ranks(2, run, *settings, "--resume") == [0, 0], ranks.said
    tolerance = {"atol": 0, "rtol": 0} if engine == "ddp" else {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(state(folder), state(one.folder), **tolerance)
    assert losses(folder) == pytest.approx(losses(one.folder), abs=1e-5)


NAN = float("nan")


def ruined_in(rank, step, *arguments):
    with ExitStack() as stack:
        if os.environ["RANK"] == str(rank):
            ruined = mock.patch.object(
                ranks_module, "summed_loss", lambda *given: ALONE.summed_loss(*given, True) * NAN
            )
            stack.enter_context(around_step(step, lambda _: ruined))
        return run(*arguments)


def test_a_step_that_is_not_finite_in_one_process_is_left_out_in_all(tmp_path, ranks):
    """And the run ends in all, where it may not be."""
    settings = [config_file(tmp_path), "train.parallel=ddp", "train.checkpoint_every=2"]
    assert ranks(2, ruined_in, 1, 3, *settings, "name=skips", "train.max_skipped_steps=1") == [0, 0], ranks.said
    assert rows(run_config(tmp_path, "name=skips").folder)[2]["train_loss"] is None
    assert ranks(2, ruined_in, 1, 3, *settings, "name=ends") == [2, 2]
    told = [line for said in ranks.said for line in said.splitlines() if line.startswith("error")]
    assert len(told) == 1 and re.search("step 3: loss nan.*the last good checkpoint is .*step_000002", told[0])
    assert rows(run_config(tmp_path, "name=ends").folder)[-1]["diverged"].startswith("step 3: loss nan")


# Ends


def fail_in(rank, *arguments):
    """Where one rank finds no text."""
    missing = mock.Mock(side_effect=InputError("data.source: nothing there"))
    with ExitStack() as stack:
        if os.environ["RANK"] == str(rank):
            stack.enter_context(mock.patch.object(loop, "load_corpus", missing))
        return run(*arguments)


@pytest.mark.parametrize(
    ("size", "function", "settings", "message"),
    [
        (2, run, ["train.stepz=1"], "train: unknown key 'stepz'"),
        (2, run, ["train.parallel=null"], "train.parallel: expected ddp or fsdp with 2 processes, got null"),
        (3, run, [], "train.batch_size: expected a multiple of the 3 processes, got 4"),
        (2, run, ["train.learning_rate=1e30", "train.grad_clip=null", "train.optimizer=adamw"], "step 2: loss"),
    ],
)
def test_an_error_that_all_have_is_told_once(tmp_path, ranks, size, function, settings, message):
    statuses = ranks(size, function, config_file(tmp_path), "train.parallel=ddp", *settings)
    assert statuses == [2] * size
    told = [line for said in ranks.said for line in said.splitlines() if line.startswith("error")]
    assert len(told) == 1 and re.search(message, told[0])
    assert not any("Traceback" in said for said in ranks.said)


def test_a_process_that_waited_in_vain_does_not_say_that_another_has_ended(monkeypatch):
    """gloo's words after 30 minutes, in which the first process may have been preparing a text."""
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    store = mock.Mock(add=lambda *_: 1)
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda _: iter([(store, 0, 2)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", mock.Mock())
    monkeypatch.setattr(torch.distributed, "destroy_process_group", mock.Mock())
    with pytest.raises(InputError, match="^waited 30 minutes for another process of this run; .* prepare.py$"):
        with joined():
            raise RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv")


def test_more_processes_than_gpus_are_refused_where_a_gpu_is_asked_for(monkeypatch):
    for name, count in {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(count))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(ranks_module.ENGINES, "ddp", mock.Mock())
    settings = TrainConfig(batch_size=4, parallel="ddp")
    for gpus, device in ((1, "cpu"), (2, "auto"), (2, "cuda")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert pick_engine(settings.model_copy(update={"device": device}))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match="^train.device: expected a GPU for each of 2 processes, got 1"):
        pick_engine(settings)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_that_one_has_ends_all_in_a_line(tmp_path, ranks, rank):
    assert ranks(2, fail_in, rank, config_file(tmp_path), "train.parallel=fsdp") == [2, 2]
    assert ranks.said[rank].endswith("error: data.source: nothing there\n") and "error:" not in ranks.said[1 - rank]


def die_in(rank, step, *arguments):
    if os.environ["RANK"] == str(rank):
        with before_step(step, lambda _: os.kill(os.getpid(), signal.SIGKILL)):
            return run(*arguments)
    return run(*arguments)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_whose_neighbour_dies_says_so_in_a_line_and_the_run_goes_on(tmp_path, ranks, rank):
    settings = [config_file(tmp_path), "name=many", "train.checkpoint_every=2", "train.micro_batch_size=2"]
    one = trained(tmp_path, "name=one", *settings[2:])
    statuses = ranks(2, die_in, rank, 4, *settings, "train.parallel=ddp")
    assert (statuses[rank], statuses[1 - rank]) == (-9, 2)
    said = "another process of this run has ended, so this one ends, too; --resume continues it"
    assert ranks.said[1 - rank].splitlines()[-1] == f"error: {said}"
    assert ranks(2, run, *settings, "train.parallel=ddp", "--resume") == [0, 0], ranks.said
    assert weights(one.folder) == weights(run_config(tmp_path, "name=many").folder)


def test_only_the_first_process_writes(tmp_path, ranks):
    """Neither a terminal nor a folder has anything twice."""
    assert ranks(2, run, config_file(tmp_path), "train.parallel=ddp", "train.checkpoint_every=2") == [0, 0]
    assert "validation loss" in ranks.said[0] and ranks.said[1] == ""
    assert [row["step"] for row in rows(run_config(tmp_path).folder)] == [1, 2, 3, 4, 5, 6, 6]


def test_torchrun_names_the_process_that_died(tmp_path):
    """Started as a user would. Its own lines come beside the run's one."""
    file = config_file(tmp_path)
    settings = ["train.parallel=ddp", "train.steps=1000000", "train.checkpoint_every=5"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        program.__file__,
        file,
        *settings,
    ]
    environment = {key: value for key, value in os.environ.items() if key not in STARTED_BY_TORCHRUN}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**environment, "OMP_NUM_THREADS": "1"})
    folder = run_config(tmp_path).folder
    while not (folder / "checkpoints").is_dir():
        assert process.poll() is None, process.stderr.read()
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], stdout=subprocess.PIPE, text=True)
    victim = int(children.stdout.split()[1])
    os.kill(victim, signal.SIGKILL)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 1
    assert said.count("error: another process of this run has ended") == 1
    assert re.search(rf"rank +: 1 .*\n.*exitcode +: -9 \(pid: {victim}\)", said)
    assert (
        call(
            program,
            file,
            f"train.steps={RunFolder(load_config(file), resume=True).metrics()[-1]['step'] + 9}",
            "--resume",
        )
        == 0
    )
