"""From documents to two memory-mapped streams of token ids, cached by content."""

import json
import shutil
import sys
import time
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
from tokenizers import Tokenizer

from base import InputError, printable, writing
from data.config import DataConfig
from data.documents import Slice, parts
from data.encoding import token_chunks
from data.sources import open_source
from data.tokenizer import load_tokenizer, tokenizer_files, train_tokenizer

HALVES = ("tuning", "reporting")  # of the validation text
_VERSION = 2  # raise it when the same text and settings produce different files


@dataclass(frozen=True)
class Corpus:
    """train, val: 1-D memory maps of token ids (uint16, or uint32 for a vocabulary above 65,536), with an end-of-text
    token before each document; val is the part that data.val_part names. hash: SHA-256 of the whole text alone.
    train_bytes, val_bytes: UTF-8 bytes of the text.
    """

    train: numpy.memmap
    val: numpy.memmap
    tokenizer: Tokenizer
    hash: str
    train_bytes: int
    val_bytes: int
    source: str


def load_corpus(config: DataConfig) -> Corpus:
    """Reads the source, and tokenizes it unless cache_dir has the same text under the same settings.

    A source without a validation split is divided. A single document gives its last val_fraction of characters; of
    several, those whose own hash falls below val_fraction are for validation, so a new document moves no other.
    InputError: a source that cannot be found or read or has too little text, a cache_dir that cannot be written.
    """
    streams = open_source(config)
    content, documents, empty = _hash(streams, config)
    if not documents:
        raise InputError(f"data.source {config.source!r}: no text in it")
    with_text = {split: lambda stream=stream: filter(None, stream()) for split, stream in streams.items()}
    settings = [_VERSION, content, config.val_fraction, config.tokenizer.model_dump()]
    folder = Path(config.cache_dir).expanduser() / sha256(json.dumps(settings).encode()).hexdigest()[:20]
    corpus = _read_entry(folder, config)
    if corpus is None:
        _make_entry(folder, config, content, _split(with_text, documents, config.val_fraction))
        corpus = _read_entry(folder, config)
    if not len(corpus.val):
        raise InputError(
            f"data.val_part {config.val_part!r}: the validation text has no document in that half; more documents, or a single one, have both"
        )
    left_out = ", ".join([*streams.left_out, *[f"{empty:,} row{'s' * (empty > 1)} without text"][:empty]])
    if told := [*filter(None, [streams.kept, left_out and f"left out: {left_out}"])]:
        _tell_once(f"data.source {config.source!r}: {'; '.join(told)}")
    return corpus


@cache  # a comparison opens its corpus for every run
def _tell_once(line):
    print(printable(line), file=sys.stderr)


def _encoded(document):
    return (part.encode() for part in parts(document))


def _hash(streams, config):
    """The SHA-256 of the text and of where its documents end, and how many documents have text and have none."""
    digest, count, empty = sha256(), 0, 0
    for split, documents in streams.items():
        for document in documents():
            if not document:
                empty += 1
                continue
            try:
                digest.update(f"{split} {sum(map(len, _encoded(document)))} ".encode())
            except UnicodeEncodeError as error:
                where = ascii(error.object[max(0, error.start - 20) : error.start + 1])
                raise InputError(f"data.source {config.source!r}: unpaired surrogate at the end of {where}") from None
            for part in _encoded(document):
                digest.update(part)
            count += 1
    return digest.hexdigest(), count, empty


def _split(streams, documents, fraction):
    split = _train_and_val(streams, documents, fraction)
    return split | {half: lambda half=half: _half(split["val"], half) for half in HALVES}


def _half(documents, half):
    first = list(islice(documents(), 2))
    if len(first) == 1:
        length = sum(map(len, parts(first[0])))
        ends = (0, length // 2) if half == "tuning" else (length // 2, length)
        return iter([Slice(first[0], *ends)] if ends[0] < ends[1] else [])
    return (document for document in documents() if HALVES[_digest(document)[8] % 2] == half)


def _train_and_val(streams, documents, fraction):
    train = streams["train"]
    if "validation" in streams:
        return {"train": train, "val": streams["validation"]}
    if documents == 1:
        text = next(iter(train()))
        length = sum(map(len, parts(text)))
        cut = length - round(length * fraction)
        slices = {"train": Slice(text, 0, cut), "val": Slice(text, cut, length)}
        return {name: lambda s=s: [s] if s.start < s.stop else [] for name, s in slices.items()}

    def in_validation(document):
        return int.from_bytes(_digest(document)[:8], "big") < fraction * 2**64

    return {
        "train": lambda: (document for document in train() if not in_validation(document)),
        "val": lambda: filter(in_validation, train()),
    }


def _digest(document):
    digest = sha256()
    for part in _encoded(document):
        digest.update(part)
    return digest.digest()


def _make_entry(folder, config, content, split):
    with writing(f"data.cache_dir {config.cache_dir!r}"):
        shutil.rmtree(folder, ignore_errors=True)  # if damaged; later it may be another process's good one
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as place:
            work = Path(place) / "entry"
            work.mkdir()
            _write_entry(work, config, content, split)
            try:
                work.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process was first, with the same content
                    raise


def _write_entry(folder, config, content, split):
    start = time.monotonic()
    # A char tokenizer needs the characters of the validation text too, or that text would have no loss.
    seen = chain(split["train"](), split["val"]()) if config.tokenizer.kind == "char" else split["train"]()
    tokenizer = train_tokenizer(config.tokenizer, seen)
    facts = {"version": _VERSION, "source": config.source, "hash": content, "config": config.tokenizer.model_dump()}
    for name, documents in split.items():
        facts[name] = _write_tokens(folder / f"{name}.npy", config.tokenizer, tokenizer, documents())
    train, val = facts["train"], facts["val"]
    if not (train["documents"] and val["documents"]):
        raise InputError(
            f"data.source {config.source!r}: expected documents for training and for validation, got "
            f"{train['documents']} and {val['documents']} at data.val_fraction {config.val_fraction}; only a single "
            "document is itself divided: join the files into one, or name them train.* and validation.*"
        )
    (folder / "tokenizer.json").write_text(tokenizer_files(tokenizer)["tokenizer.json"], encoding="utf-8")
    (folder / "corpus.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    print(
        f"tokenized {config.source}: {train['bytes']:,} + {val['bytes']:,} bytes of text (training + validation) are "
        f"{train['tokens']:,} + {val['tokens']:,} tokens, in {time.monotonic() - start:.1f} s",
        file=sys.stderr,
    )


def _write_tokens(path, config, tokenizer, documents):
    dtype = numpy.dtype("<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4")
    size = {"documents": 0, "bytes": 0, "tokens": 0}

    def counted(document):  # while it is read, since a long one is a file
        size["documents"] += 1
        for part in parts(document):
            size["bytes"] += len(part.encode())
            yield part

    def write_header(file):  # numpy leaves room in it for the length to grow
        header = {"descr": dtype.str, "fortran_order": False, "shape": (size["tokens"],)}
        numpy.lib.format.write_array_header_1_0(file, header)

    with path.open("wb") as file:
        write_header(file)
        for ids in token_chunks(tokenizer, config, map(counted, documents)):
            file.write(numpy.array(ids, dtype).tobytes())
            size["tokens"] += len(ids)
        file.seek(0)
        write_header(file)
    return size


def _read_entry(folder, config):
    """The cached corpus, or None if it is missing or damaged."""
    part = "val" if config.val_part == "all" else config.val_part
    try:
        facts = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        train, val = (numpy.load(folder / f"{name}.npy", mmap_mode="r") for name in ("train", part))
        if (len(train), len(val)) != (facts["train"]["tokens"], facts[part]["tokens"]):
            return None
        sizes = facts["train"]["bytes"], facts[part]["bytes"]
        return Corpus(train, val, load_tokenizer(folder), facts["hash"], *sizes, config.source)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None
