"""What a large corpus costs: python benchmarks/prepare_memory.py [GIGABYTES [KIND FOLDER]]

Makes files of that much text in all (default 2 GB) from Python's own documentation and source, repeated with other
letters here and there, in a temporary folder inside FOLDER. Then, each in a process of its own: prepares it with a
tokenizer of that kind (default bpe), kills that halfway and goes on, opens it again, and trains a few steps; for
comparison also on the small validation text alone. Prints the time and the largest resident size of each, which must
stay below 1 GB. Needs as much space again for tokens of bpe, and twice as much for bytes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from data.config import DataConfig
from data.corpus import load_corpus
from data.python_library import python_docs, python_source

PER_FILE = 10**9
LETTERS = numpy.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", numpy.uint8)


def write_text(folder: Path, size: int) -> None:
    """train/NNN.txt, and validation.txt with the first 200 kB unchanged."""
    texts = [*python_docs(DataConfig(cache_dir=str(folder / "cache"))), *python_source()]
    base = numpy.frombuffer("\n\n".join(texts).encode(), numpy.uint8)
    (folder / "text" / "train").mkdir(parents=True)
    (folder / "text" / "validation.txt").write_bytes("\n\n".join(texts)[:200_000].encode())
    letters = numpy.flatnonzero(numpy.isin(base, LETTERS))
    rng = numpy.random.default_rng(0)
    for number, start in enumerate(range(0, size, PER_FILE)):
        left = min(PER_FILE, size - start)
        with (folder / "text" / "train" / f"{number:03}.txt").open("wb") as file:
            while left > 0:
                changed = base.copy()  # one word in ten or so
                places = rng.choice(letters, len(letters) // 50)
                changed[places] = rng.choice(LETTERS, len(places))
                left -= file.write(changed.tobytes()[:left])


def run(what: str, *command: str, kill_when: Callable[[], bool] = lambda: False) -> None:
    """Runs a program of the project and prints what it took."""
    start, ended = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not ended:
        time.sleep(0.05)
        if kill_when():
            os.kill(process.pid, signal.SIGKILL)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = status
    seconds, peak = time.monotonic() - start, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    how = f" (status {status})" * (status != 0)
    print(f"{what}: {seconds:.1f} s, largest resident size {peak / 1e6:.0f} MB{how}", flush=True)


def measure(folder: Path, size: int, kind: str) -> None:
    start = time.monotonic()
    write_text(folder, size)
    print(f"{size / 1e9:g} GB of text written in {time.monotonic() - start:.0f} s", flush=True)
    config = {
        "runs_dir": str(folder / "runs"),
        # a file may end inside a character
        "data": {
            "source": str(folder / "text"),
            "errors": "replace",
            "cache_dir": str(folder / "cache"),
            "tokenizer": {"kind": kind},
        },
        "model": {"hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 128},
        "train": {"steps": 20, "warmup_steps": 5, "batch_size": 16, "device": "cpu"},
    }
    path = folder / "large.yaml"
    path.write_text(json.dumps(config))

    def half_done() -> bool:
        manifests = [json.loads(file.read_text()) for file in (folder / "cache").glob(".unfinished-*/corpus.json")]
        return any(manifest["train"]["sources"][0]["bytes"] > size / 2 for manifest in manifests)

    run("preparing, killed halfway", "prepare.py", str(path), kill_when=half_done)
    run("preparing, continued", "prepare.py", str(path))
    start = time.monotonic()
    load_corpus(DataConfig(**config["data"]))
    print(f"opening what is prepared: {time.monotonic() - start:.2f} s", flush=True)
    run("20 steps", "train.py", str(path))
    run(
        "20 steps on the validation text alone",
        "train.py",
        str(path),
        "name=small",
        f"data.source={folder}/text/validation.txt",
    )


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 2) * 1e9)
    kind = sys.argv[2] if len(sys.argv) > 2 else "bpe"
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as folder:
        measure(Path(folder), size, kind)


if __name__ == "__main__":
    main()
