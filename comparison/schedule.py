"""Trains the runs of a comparison, one after the other or several at a time, and shows the progress."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

import torch

from base import InputError
from comparison.design import TRAIN, Comparison, PlannedRun
from comparison.measure import Corpora
from comparison.tuning import logged_runs, next_runs
from configs import Config
from training.facts import duration
from training.loop import train
from training.processes import STARTED_BY_TORCHRUN
from training.rehearsal import rehearse
from training.run import RunFolder

POLL_SECONDS = 0.5
GRACE_SECONDS = 60  # for a training to save itself and stop


def announce(parts: Iterable[Comparison], corpora: Corpora) -> None:
    """Prints how many runs there are to train and about how long that takes, by some steps of each part's baseline."""
    count, seconds = 0, 0.0
    for part in parts:
        runs, plan = next_runs(part), part.config
        if plan.learning_rates and None in logged_runs(runs) and runs[0].config.data.val_part == "tuning":
            # at whatever rate will be the best
            runs += [run for variant in plan.variants for run in part.runs_at_rate(variant, plan.learning_rates[0])]
        left = Progress([run.config for run in runs]).left
        if any(left.values()):
            config = part.runs_at_rate(plan.baseline, next(iter(plan.learning_rates), None))[0].config
            count += sum(tokens > 0 for tokens in left.values())
            of_one, _ = rehearse(config, corpora.load(config.data))
            seconds += of_one * sum(left.values()) / _tokens(config)
    if count:
        said = f"about {duration(seconds)}, by some steps of the baseline, and then the time that the report takes"
        print(f"{count} run{'s' * (count > 1)} to train: {said}", file=sys.stderr, flush=True)


def train_all(runs: list[PlannedRun], jobs: int) -> None:
    """Trains what has neither finished nor diverged; half-finished runs continue.

    With several jobs that many processes of train.py run at a time, each with its share of the threads. The first
    failure that is not a divergence ends all with an InputError; then, and when this process is stopped, the other
    processes are stopped.
    """
    progress = Progress([run.config for run in runs])
    waiting = [run for run in runs if progress.left[run.config.name]]
    if jobs > 1:
        return _in_processes(waiting, jobs, progress)
    for config in (run.config for run in waiting):
        print(progress.line([config]), file=sys.stderr)
        try:
            train(config, RunFolder.exists(config), tell=config is waiting[0].config)
        except InputError:
            if not _divergence(config):
                raise
        progress.update(config)


def _divergence(config: Config) -> str | None:
    """Prints what was no longer finite in a run that diverged, and returns it."""
    if said := RunFolder.exists(config) and RunFolder(config, resume=True).divergence():
        start = "\r\033[K" if sys.stderr.isatty() else ""
        print(f"{start}{config.folder} has diverged: {said}; the other runs continue", file=sys.stderr)
    return said


def _in_processes(waiting, jobs, progress):
    active: list[_Process] = []
    try:
        while waiting or active:
            free = jobs - len(active)
            begun, waiting = waiting[:free], waiting[free:]
            for run in begun:  # one by one: where a later one does not start, the others are stopped
                active.append(_Process(run, jobs))
            line = progress.line([process.config for process in active])
            if sys.stderr.isatty():
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            elif begun:
                print(line, file=sys.stderr, flush=True)
            time.sleep(POLL_SECONDS)
            for process in active:
                progress.update(process.config)
            active = [process for process in active if not process.ended()]
    finally:
        for process in active:  # all at once, as each may take its time
            process.process.terminate()
        for process in active:
            process.stop()


class Progress:
    """The tokens left to train in each run, by its name, and from the pace so far the time left."""

    def __init__(self, configs: list[Config]):
        self.configs, self.begun, self.left = configs, time.monotonic(), {}
        for config in configs:
            self.update(config)
        self.at_start = sum(self.left.values())

    def update(self, config: Config) -> None:
        """Looks into the folder of a run for how far it is."""
        steps = config.train.steps
        if RunFolder.exists(config):
            run = RunFolder(config, resume=True)
            logged = max((row["step"] for row in run.metrics()), default=0)
            ended = run.is_finished() or run.divergence()
            steps = 0 if ended else max(1, steps - logged)  # the last step may be logged and not saved
        self.left[config.name] = _tokens(config, steps)

    def line(self, active: list[Config]) -> str:
        """`run 3 of 20: runs/compare/rope-seed2, about 12 min left`; several runs where they train at the same time."""
        numbers = ", ".join(str(self.configs.index(config) + 1) for config in active)
        places = ", ".join(str(config.folder) for config in active)
        return f"run{'s' * (len(active) > 1)} {numbers} of {len(self.configs)}: {places}, {self.time_left()}"

    def time_left(self) -> str:
        """At the pace so far."""
        left = sum(self.left.values())
        done = self.at_start - left
        if not done:
            return "time left unknown"
        return f"about {duration((time.monotonic() - self.begun) / done * left)} left"


def _tokens(config: Config, steps: int | None = None) -> int:
    """Of so many steps; None: of all."""
    steps = config.train.steps if steps is None else steps
    return steps * config.train.batch_size * config.model.max_position_embeddings


class _Process:
    """One train.py in a process of its own."""

    def __init__(self, run: PlannedRun, jobs: int):
        self.config, self.errors = run.config, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        threads = torch.get_num_threads()  # OpenMP's: of OMP_NUM_THREADS, or the cores that this process may use
        command = [sys.executable, TRAIN, *run.arguments, *["--resume"] * RunFolder.exists(run.config)]
        inherited = {key: value for key, value in os.environ.items() if key not in STARTED_BY_TORCHRUN}
        environment = {**inherited, "OMP_NUM_THREADS": str(max(1, threads // jobs))}
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.errors, env=environment)
        except BaseException:
            self.errors.close()
            raise

    def ended(self) -> bool:
        """Whether it has; InputError with its last line where it failed, unless the run diverged."""
        status = self.process.poll()
        if status is None:
            return False
        with self.errors:
            self.errors.seek(0)
            said = self.errors.read().strip()
        if status and not _divergence(self.config):
            if status != 2:  # a bug: show its traceback
                print(said, file=sys.stderr)
            reason = said.splitlines()[-1] if said else f"ended with status {status}"
            raise InputError(f"{self.config.folder}: {reason.removeprefix('error: ')}")
        return True

    def stop(self) -> None:
        """Waits for it to stop; kills it after GRACE_SECONDS."""
        self.errors.close()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
