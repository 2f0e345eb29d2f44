"""How fast text becomes tokens: python benchmarks/tokenizing.py [SOURCE]

SOURCE is a text file or anything else that data.source accepts; default python_docs. Prints for every kind of tokenizer
how many MB/s of UTF-8 it encodes once trained, next to the library's own encode_batch_fast on pieces of 10 kB, the two
taking turns; and the seconds to train it and to open the corpus from the cache.
"""

import statistics
import sys
import tempfile
import time

from side_by_side import seconds

from data.config import DataConfig
from data.corpus import load_corpus
from data.documents import parts
from data.encoding import token_chunks
from data.sources import open_source
from data.tokenizer import train_tokenizer

ROUNDS = 5


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else "python_docs"
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("byte", "char", "bpe"):
            config = DataConfig(source=source, cache_dir=cache, tokenizer={"kind": kind})
            documents = ["".join(parts(document)) for document in filter(None, open_source(config)["train"]())]
            pieces = [text[n : n + 10_000] for text in documents for n in range(0, len(text), 10_000)]
            megabytes = sum(len(text.encode()) for text in documents) / 1e6
            start = time.perf_counter()
            tokenizer = train_tokenizer(config.tokenizer, documents)
            training = time.perf_counter() - start

            def ours():
                return sum(len(chunk.ids) for chunk in token_chunks(tokenizer, config.tokenizer, documents))

            def theirs():
                return sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(pieces))

            rounds = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)]
            mine, plain = (megabytes / statistics.median(times) for times in zip(*rounds))
            load_corpus(config)
            cached = statistics.median(seconds(lambda: load_corpus(config)) for _ in range(ROUNDS))
            print(
                f"{source}, {megabytes:.1f} MB, {kind}: {mine:.1f} MB/s, encode_batch_fast {plain:.1f} MB/s "
                f"(medians of {ROUNDS}); training {training:.2f} s, load_corpus from the cache {cached:.2f} s"
            )


if __name__ == "__main__":
    main()
