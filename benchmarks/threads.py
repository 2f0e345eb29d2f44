"""How threads should wait, in three worlds: python benchmarks/threads.py

train.py at 0.8M parameters on a quiet machine, next to another busy program, and twice at once, with each setting that the
environment can give OpenMP. Every run is its own process, in turn; medians of tokens/s, of two trainings their sum.
`compare.py --jobs` gives each training its share of the cores, as OMP_NUM_THREADS does here.
"""

import os
import subprocess
import sys
import tempfile

from side_by_side import in_turn, start_training, table, trained_speed

ROUNDS = 2
SHARE = str(max(1, (os.cpu_count() or 2) // 2))
SETTINGS = {
    "as it starts": {},
    "OpenMP's own default, GOMP_SPINCOUNT=300000": {"GOMP_SPINCOUNT": "300000"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    f"OMP_NUM_THREADS={SHARE}": {"OMP_NUM_THREADS": SHARE},
}
SETUP = ["model.max_position_embeddings=64", "train.batch_size=12", "train.steps=80", "train.log_every=20"]


def quiet(folder: str, environment: dict[str, str], count: int = 1) -> float:
    """Tokens/s of `count` trainings at once."""
    names = [f"speed{number}" for number in range(count)]
    processes = [start_training(folder, name, SETUP, **environment) for name in names]
    return sum(trained_speed(folder, name, process) for name, process in zip(names, processes))


def next_to_a_busy_program(folder: str, environment: dict[str, str]) -> float:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return quiet(folder, environment)
    finally:
        busy.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        quiet(folder, {})  # tokenizes
        worlds = {
            "quiet": quiet,
            "next to a busy program": next_to_a_busy_program,
            "two trainings": lambda *at: quiet(*at, 2),
        }
        sides = {
            (world, setting): lambda call=call, environment=environment: call(folder, environment)
            for setting, environment in SETTINGS.items()
            for world, call in worlds.items()
        }
        found = in_turn(sides, ROUNDS)
    best = {world: max(found[world, setting] for setting in SETTINGS) for world in worlds}
    print(
        table([
            {"threads": setting}
            | {world: f"{found[world, setting]:,.0f} ({found[world, setting] / best[world]:.0%})" for world in worlds}
            for setting in SETTINGS
        ])
    )  # fmt: skip


if __name__ == "__main__":
    main()
