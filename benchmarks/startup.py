"""What happens before the first step: python benchmarks/startup.py

Whole processes, median of five: --help of the three programs; a config with a mistake; train.py on the built-in corpus
with cached tokens, from the command to the end of the first step, which the first metrics row marks; and generate.py
with a model of 12M parameters and one token to make.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from decode import write_model
from side_by_side import ROOT, in_turn, seconds, table

QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def run(program: str, *arguments) -> None:
    """Runs a program to its end, whatever its exit status."""
    subprocess.run([sys.executable, ROOT / program, *map(str, arguments)], capture_output=True)


def first_step(folder: str) -> None:
    """Starts a run and ends it as soon as its first step is logged."""
    settings = [f"runs_dir={folder}", f"data.cache_dir={folder}/cache", "train.log_every=1"]
    command = [sys.executable, ROOT / "train.py", QUICKSTART, "--overwrite", *settings]
    metrics = Path(folder) / "quickstart" / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.005)
        process.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_model("12M", Path(folder) / "12M")
        one_token = folder + "/12M", "--prompt", "a", "--max-new-tokens", 1
        times = in_turn(
            {
                "train.py --help": lambda: seconds(run, "train.py", "--help"),
                "generate.py --help": lambda: seconds(run, "generate.py", "--help"),
                "compare.py --help": lambda: seconds(run, "compare.py", "--help"),
                "a config with a mistake": lambda: seconds(run, "train.py", QUICKSTART, "train.stepz=3"),
                "train.py to its first step": lambda: seconds(first_step, folder),
                "generate.py to its first token": lambda: seconds(run, "generate.py", *one_token),
            },
            rounds=5,
        )
    print(table([{"command": name, "seconds": f"{taken:.2f}"} for name, taken in times.items()]))


if __name__ == "__main__":
    main()
