"""Tokens on their way to the disk, so that a killed preparation goes on where it stopped and ends with the same bytes.

A folder holds tokenizer.json, one .npy file for each stream, which grows by shards, and corpus.json, the manifest: for each stream and
source how many chunks, documents, bytes and tokens its finished shards have. What lies behind those is written
again. It is one file because those who draw from it want a single memory map.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy
from tokenizers import Tokenizer

from base import flush, printable, replace_text
from data.config import TokenizerConfig
from data.documents import Document
from data.encoding import token_chunks
from data.tokenizer import highest_id, load_tokenizer, tokenizer_files

MANIFEST = "corpus.json"
_SHARD = 32  # chunks, 2 MB of text each: what a kill costs at most
_SECONDS_BETWEEN_LINES = 60  # of progress
_NOTHING = {"chunks": 0, "documents": 0, "bytes": 0, "tokens": 0, "finished": False}


def write_streams(
    folder: Path,
    about: dict,
    config: TokenizerConfig,
    train: Callable[[], Tokenizer],
    streams: Mapping[str, Sequence[Callable[[], Iterable[Document]]]],
    end_of_text: int | None = None,
    most: Sequence[int | None] | None = None,
) -> dict:
    """Writes, or goes on writing, the tokenizer and the tokens of streams, each of several sources one after another.

    most: tokens to take of each source for the stream "train"; None: all.
    Returns the manifest: `about`, and for each stream {"sources": [{"documents": …, "bytes": …, "tokens": …}, …]}.
    """
    manifest = _begun(folder) or about | {name: {"sources": [{**_NOTHING} for _ in s]} for name, s in streams.items()}
    if (folder / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(folder)
    else:
        tokenizer = train()
        replace_text(folder / "tokenizer.json", tokenizer_files(tokenizer)["tokenizer.json"])
    told = time.monotonic()

    def finish_shard(file):
        nonlocal told
        flush(file)
        replace_text(folder / MANIFEST, json.dumps(manifest, indent=2))
        if time.monotonic() - told > _SECONDS_BETWEEN_LINES:
            done = sum(size["bytes"] for size in manifest[name]["sources"])
            print(f"tokenizing {printable(about['source'])}: {done:,} bytes of {name} so far", file=sys.stderr)
            told = time.monotonic()

    for name, sources in streams.items():
        rooms = most if most and name == "train" else [None] * len(sources)
        chunks_of = [
            lambda size, text=text, room=room: token_chunks(
                tokenizer, config, text(), size["chunks"], end_of_text, room and room - size["tokens"]
            )
            for text, room in zip(sources, rooms)
        ]
        _write_stream(folder / f"{name}.npy", token_type(tokenizer), chunks_of, manifest[name]["sources"], finish_shard)
    return manifest


def token_type(tokenizer: Tokenizer) -> numpy.dtype:
    """That of token files, which holds every id."""
    return numpy.dtype("<u2" if highest_id(tokenizer) < 2**16 else "<u4")


def _begun(folder):
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_stream(path, dtype, chunks_of, sizes, finish_shard):
    def write_header():  # numpy leaves room in it for the length to grow
        file.seek(0)
        shape = (sum(size["tokens"] for size in sizes),)
        numpy.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
        return file.tell() + dtype.itemsize * shape[0]

    with path.open("r+b" if path.exists() else "w+b") as file:
        if os.fstat(file.fileno()).st_size < write_header():
            for size in sizes:
                size.update(_NOTHING)
        file.seek(write_header())
        for chunks, size in zip(chunks_of, sizes):
            if size["finished"]:
                continue
            for chunk in chunks(size):
                file.write(chunk.ids.astype(dtype).tobytes())
                more = {"chunks": 1, "documents": chunk.documents, "bytes": chunk.bytes, "tokens": len(chunk.ids)}
                size.update({key: size[key] + more[key] for key in more})
                size["finished"] = chunk.is_last  # already here: after a kill, later documents might fit into the rest
                if size["chunks"] % _SHARD == 0:
                    finish_shard(file)
            size["finished"] = True
            finish_shard(file)
        write_header()
