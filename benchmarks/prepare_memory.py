"""How much memory a large corpus takes while it is prepared: python benchmarks/prepare_memory.py [GIGABYTES [KIND]]

Writes one text file of that size (default 2 GB), prepares it with a tokenizer of that kind (default bpe), and prints the
largest resident size of the process, which must stay below 1 GB. Needs twice that size in the temporary folder.
"""

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from data.config import DataConfig
from data.corpus import load_corpus


def write_text(path: Path, size: int) -> None:
    """Lines of words drawn from 50,000, a few of them not ASCII."""
    rng, letters = random.Random(0), "etaoinshrdlucmfwypvbgkjqxzéß北京"
    words = ["".join(rng.choices(letters, range(len(letters), 0, -1), k=rng.randint(1, 9))) for _ in range(50_000)]
    block = "\n".join(" ".join(rng.choices(words, k=12)) for _ in range(100_000)).encode()
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])


def main() -> None:
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 2) * 1e9)
    kind = sys.argv[2] if len(sys.argv) > 2 else "bpe"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "large.txt"
        write_text(source, size)
        # the cut may fall inside a character
        settings = {"source": str(source), "errors": "replace", "cache_dir": f"{folder}/cache"}
        config = DataConfig(**settings, tokenizer={"kind": kind})
        start = time.monotonic()
        corpus = load_corpus(config)
        seconds = time.monotonic() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(
            f"{size / 1e9:.2f} GB of text, {kind}: {len(corpus.train) + len(corpus.val):,} tokens "
            f"in {seconds:.0f} s, "
            f"largest resident size {peak / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
