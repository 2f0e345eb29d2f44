"""Threads sleep while others use the processors, and spin else; no result depends on it."""

import os
import threading
import time

import pytest
import torch

from model import threads
from model.threads import crowd, share_the_cores
from training.loss import summed_loss
from training.machine import using_threads

LINUX = pytest.mark.skipif(not threads.STAT.is_file(), reason="needs /proc/stat")


@LINUX
def test_the_use_of_others_is_that_of_our_processors_without_our_own(tmp_path, monkeypatch):
    ticks = os.sysconf("SC_CLK_TCK")
    # columns: user nice system idle iowait irq softirq steal guest guest_nice; guests are in user already
    stat = "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 4000 500 6 7 8 90 10\ncpu1 1 0 0 0 0 0 0 0 0 0\ncpu10 7 7 7 7 7 7 7 7 7 7\n"
    (tmp_path / "stat").write_text(stat + "intr 1 2 3\n")
    monkeypatch.setattr(threads, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(time, "process_time", lambda: 1.25)
    assert threads._usage()[1] == pytest.approx((100 + 20 + 30 + 6 + 7 + 8 + 1) / ticks - 1.25)


class Looks:
    """Ends the watch after as many looks as there are seconds that others used, of one second each."""

    def __init__(self, monkeypatch, cores, own_threads, others):
        self.usage = [(float(n), sum(others[:n])) for n in range(len(others) + 1)]
        self.log = []
        monkeypatch.setattr(threads, "_usage", lambda: self.usage.pop(0))
        monkeypatch.setattr(threads, "crowd", lambda size: self.log.append(size) or self)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
        monkeypatch.setattr(torch, "get_num_threads", lambda: own_threads)

    def wait(self, seconds):
        self.log.append(".")
        return not self.usage

    def set(self):
        self.log.append("gone")


@pytest.mark.parametrize(
    ("cores", "own_threads", "others", "log"),
    [
        (2, 2, [0.1, 0.2, 0.0], ". . . ."),
        (2, 2, [0.1, 0.9, 1.0, 0.1, 0.3], ". . 2 . . gone . 2 ."),
        (8, 4, [3.9, 4.5, 0.0], ". . 6 . gone ."),  # four are left over before it gets crowded; 4 + 6 − 1 > 8
        (2, 1, [2.0, 2.0], ". . ."),  # a single thread waits for nobody
        (1, 4, [0.5, 0.5], ". . ."),  # too many for the cores, which may have become fewer: they sleep by themselves
    ],
)
def test_idle_threads_crowd_the_processors_while_others_use_them(monkeypatch, cores, own_threads, others, log):
    looks = Looks(monkeypatch, cores, own_threads, others)
    threads._watch(looks)
    assert " ".join(map(str, looks.log)) == log


@LINUX
def test_a_crowd_is_there_until_told_to_leave():
    def count():
        return len(os.listdir("/proc/self/task"))

    before, own = count(), torch.get_num_threads()
    leave = crowd(4)
    assert count() >= before + 4 and torch.get_num_threads() == own
    leave.set()
    for _ in range(6000):
        if count() <= before:
            break
        time.sleep(0.01)
    assert count() <= before


@LINUX
def test_the_watch_knows_how_many_threads_a_run_uses(monkeypatch):
    """Of eight cores: next to a busy program four threads have room, eight have not."""
    for count, log in ((4, ". ."), (8, ". 2 .")):
        looks = Looks(monkeypatch, 8, 8, [1.0])
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
        with using_threads(count):
            threads._watch(looks)
        assert " ".join(map(str, looks.log)) == log
    assert threads.chosen is None


def test_how_threads_wait_changes_no_bit(tiny_model, tokens):
    def gradients():
        model = tiny_model("rope", dtype=torch.float32, hidden_size=128)
        summed_loss(model, tokens(4, 64), tokens(4, 64, seed=1)).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    own = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone, leave = gradients(), crowd(2)
        crowded = gradients()
        leave.set()
    finally:
        torch.set_num_threads(own)
    assert torch.equal(alone, crowded)


@pytest.mark.parametrize("key", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_told_openmp_is_left_alone(monkeypatch, key):
    monkeypatch.setenv(key, "1")
    monkeypatch.setattr(threading.Thread, "start", pytest.fail)
    share_the_cores()


def test_where_the_processors_cannot_be_looked_at_nothing_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "STAT", tmp_path / "none")
    monkeypatch.setattr(threading.Thread, "start", pytest.fail)
    share_the_cores()
