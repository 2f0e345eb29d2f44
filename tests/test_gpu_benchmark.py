"""benchmarks/gpu.py at its shape for CPUs, so that nothing of it is run for the first time on a GPU."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu
from model.position import POSITIONS

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, list[str]]]:
    """By title: the cells of each row, by its first one. Eager throughout, since a compiler takes most of a minute."""
    environment = {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert "not measured" not in done.stdout
    found = {}
    for line in done.stdout.splitlines():
        if " s of " in line:
            rows = found[line.split(",")[0]] = {}
        elif line.startswith("|") and found:
            name, *cells = line.strip("| ").split(" | ")
            rows[name] = rows.get(name, []) + cells
    return {title: dict([*rows.items()][2:]) for title, rows in found.items()}  # without the head


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells]


def test_every_section_has_its_rows_of_finite_numbers(tables):
    training, sampling, parity, precision, cost = tables.values()
    assert {*training} == {"adamw", "muon"} and {*sampling} == {"1", "8"} and {*precision} == {"float32", "bfloat16"}
    assert all({"yes", "no"} < {*cells} for cells in (*training.values(), *sampling.values()))
    assert [*parity] == [*cost] == [*POSITIONS]
    for rows in (parity, precision, cost):
        assert all(math.isfinite(number) and number >= 0 for cells in rows.values() for number in numbers(cells))


def test_float32_is_near_float64_and_bfloat16_trains_alike(tables):
    *_, parity, precision, _ = tables.values()
    for scheme, cells in parity.items():
        assert all(0 < number < 1e-4 for number in numbers(cells)), scheme
    one, other = (numbers(cells)[1:] for cells in precision.values())  # after the speed
    assert one == pytest.approx(other, rel=0.01) and one != other and one[-1] < one[0]


def test_two_tokens_of_the_text_tell_the_next_but_for_one_choice_of_a_few():
    rows = gpu.text(3).tolist()
    for row in rows:
        assert all(third in gpu.FOLLOWING[one, two] for one, two, third in zip(row, row[1:], row[2:]))
    assert gpu.text(3).tolist() == rows != gpu.text(4).tolist()


def test_a_section_leaves_out_what_does_not_fit_and_outlives_what_fails(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: now[0])

    def cell(name, taken, error=None):
        def measure():
            now[0] += taken
            if error:
                raise error
            return [{"name": name, "seconds": taken}]

        return measure

    lost = RuntimeError("no kernel\nand a trace")
    cells = {"a": cell("a", 2), "b": cell("b", 3, lost), "c": cell("c", 2), "d": cell("d", 1)}
    gpu.section("All", 10, cells)
    gpu.section("Some", 6, cells)
    assert capsys.readouterr().out.splitlines() == [
        "All, 8 s of 10", "", "| name | seconds |", "| --- | ---: |", "| a | 2 |", "| c | 2 |", "| d | 1 |",
        "", "not measured: b: RuntimeError: no kernel", "",
        "Some, 5 s of 6", "", "| name | seconds |", "| --- | ---: |", "| a | 2 |",
        "", "not measured: b: RuntimeError: no kernel", "", "not measured: c: no time", "", "not measured: d: no time", "",
    ]  # fmt: skip
