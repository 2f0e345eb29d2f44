"""What the benchmarks share: sides that take turns, each a process of its own, started as its users start it."""

import json
import os
import random
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))


def seconds(call: Callable, *arguments) -> float:
    """Wall-clock time of one call."""
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


def in_turn(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median result of each side; every round calls each once, in turn.

    A machine's speed drifts by more than the sides differ, so only sides that took turns can be compared.
    """
    given = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, call in sides.items():
            given[name].append(call())
            print(f"round {number} of {rounds}: {name} {given[name][-1]:,.2f}", file=sys.stderr)
    return {name: statistics.median(numbers) for name, numbers in given.items()}


def side(script: str, *arguments, python: str = sys.executable) -> float:
    """The last number that a script prints when run in its own process with these arguments."""
    command = [python, script, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return float(done.stdout.split()[-1])


def letters(folder: str) -> str:
    """A file of 100,000 random letters, digits, spaces, dots and dashes: 66 character tokens, with end-of-text."""
    path = Path(folder) / "letters.txt"
    path.write_text("".join(random.Random(0).choices(string.ascii_letters + string.digits + " .-", k=100_000)))
    return str(path)


def start_training(folder: str, name: str, settings: list[str], **environment: str) -> subprocess.Popen:
    """Starts train.py on `letters` under that name, with these settings and environment variables."""
    here = [
        f"name={name}",
        f"runs_dir={folder}/runs",
        f"data.cache_dir={folder}/cache",
        f"data.source={letters(folder)}",
    ]
    own = ["data.tokenizer.kind=char", "data.val_fraction=0.02", "train.optimizer=adamw", "train.eval_every=null"]
    command = [sys.executable, ROOT / "train.py", ROOT / "configs" / "quickstart.yaml", *here, *own, *settings]
    return subprocess.Popen([*command, "--overwrite"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            env={**os.environ, **environment})  # fmt: skip


def trained_speed(folder: str, name: str, process: subprocess.Popen) -> float:
    """Tokens/s of the training that a process did under that name: the median of its log, without the first row."""
    if process.wait():
        raise RuntimeError(f"{name} ended with status {process.returncode}")
    lines = (Path(folder) / "runs" / name / "metrics.jsonl").read_text().splitlines()
    speeds = [row["tokens_per_second"] for row in map(json.loads, lines) if "tokens_per_second" in row]
    return statistics.median(speeds[1:])


def gemm() -> float:
    """The machine's matrix rate: FLOP/s of products of 2048 × 2048 float32 matrices."""
    import torch

    a, b = (torch.rand(2048, 2048) for _ in range(2))
    a @ b
    return 2 * 2048**3 / statistics.median(seconds(lambda: a @ b) for _ in range(9))


def reading() -> float:
    """The memory's speed: bytes/s of a sum over 1 GB of float32, far more than any cache holds."""
    import torch

    numbers = torch.ones(2**28)
    numbers.sum()
    return 2**30 / statistics.median(seconds(numbers.sum) for _ in range(5))


def table(rows: list[dict[str, object]]) -> str:
    """Rows as a Markdown table, with the columns of the first."""
    lines = [list(rows[0]), ["---"] + ["---:"] * (len(rows[0]) - 1), *([str(v) for v in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":  # python benchmarks/side_by_side.py gemm | reading
    print(globals()[sys.argv[1]]())
