"""What the benchmarks share: taking sides in turn, and what the machine itself can do."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from base import share_the_cores

share_the_cores()  # as the programs do, for all sides, before any of them imports torch


def seconds(call: Callable, *arguments) -> float:
    """Wall-clock time of one call."""
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


def interleaved(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of a call of each side after one to warm up; every round calls each once, in turn.

    A machine's speed drifts by more than the sides differ: only what ran in turn can be compared.
    """
    for call in sides.values():
        call()
    taken = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            taken[name].append(seconds(call))
    return {name: statistics.median(times) for name, times in taken.items()}


def gemm() -> Callable[[], object]:
    """A product of two 2048 × 2048 float32 matrices; GEMM_FLOP over its seconds is the machine's matrix rate."""
    import torch

    a, b = (torch.rand(2048, 2048) for _ in range(2))
    return lambda: a @ b


GEMM_FLOP = 2 * 2048**3


def reading() -> Callable[[], object]:
    """A sum over 1 GB of float32, far more than any cache holds; READ_BYTES over its seconds is the memory's speed."""
    import torch

    numbers = torch.ones(READ_BYTES // 4)
    return numbers.sum


READ_BYTES = 2**30


def table(rows: list[dict[str, object]]) -> str:
    """Rows as a Markdown table whose columns are those of the first."""
    lines = [list(rows[0]), ["---"] + ["---:"] * (len(rows[0]) - 1), *([str(v) for v in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
