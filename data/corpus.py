"""From documents to two memory-mapped streams of token ids, cached by content."""

import errno
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import accumulate, chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
from tokenizers import Tokenizer

from base import InputError, expanded, printable, reading, writing
from data.config import DataConfig
from data.documents import Slice, parts
from data.hashing import content, digest, state
from data.shards import MANIFEST, token_type, write_streams
from data.sources import HubError, open_source
from data.tokenizer import CorpusTokenizer, load_tokenizer, train_tokenizer

UNDIVIDED = "only a single document is itself divided: join the files into one, or name them train.* and validation.*"
HALVES = ("tuning", "reporting")  # of the validation text
_VERSION = 2  # raise it when the same text and settings produce different files


@dataclass(frozen=True)
class Part:
    """What one source gives to a corpus: its stretch of both streams, and its weight in a mixture."""

    name: str
    source: str
    weight: float
    train: numpy.memmap
    val: numpy.memmap
    val_bytes: int


@dataclass(frozen=True)
class Corpus:
    """train, val: 1-D memory maps of token ids (uint16, or uint32 where the highest is above 65,535), with an end-of-text
    token before each document; val is the part that data.val_part names. hash: SHA-256 of the whole text alone, of a
    mixture that of its sources' hashes. end_of_text: that token's id. files: of the tokenizer, for a checkpoint.
    train_bytes, val_bytes: UTF-8 bytes of the text. parts: of a mixture one for each source, in order; else one, of all.
    """

    train: numpy.memmap
    val: numpy.memmap
    tokenizer: Tokenizer
    end_of_text: int
    files: dict[str, str]
    hash: str
    train_bytes: int
    val_bytes: int
    source: str
    parts: tuple[Part, ...]


def load_corpus(config: DataConfig) -> Corpus:
    """Reads the source, and tokenizes it unless cache_dir has the same text under the same settings.

    A source without a validation split is divided. A single document gives its last val_fraction of characters; of
    several, those whose own hash falls below val_fraction are for validation, so a new document moves no other.
    A killed preparation is continued. Where a text is prepared and its files are unchanged, this reads none of it.
    InputError: a source that cannot be found or read or has too little text, a cache_dir that cannot be written.
    """
    given = CorpusTokenizer.of(config.tokenizer.folder) if config.tokenizer.folder else None
    opened = [(each, open_source(each)) for each in config.each()]
    files = state(*(streams for _, streams in opened))
    contents = [content(streams, each) for each, streams in opened]
    for (each, _), found in zip(opened, contents):
        if not found.documents:
            raise InputError(f"data.source {each.source!r}: no text in it")
    hashes = [found.hash for found in contents]
    whole = hashes[0] if len(hashes) == 1 else sha256(json.dumps(hashes).encode()).hexdigest()
    tokenizer = config.tokenizer.model_dump(exclude={"folder"})
    if given:  # what it is, wherever it lies
        tokenizer = [sha256(given.tokenizer.to_str().encode()).hexdigest(), given.end_of_text]
    settings = [_VERSION, whole, config.val_fraction, tokenizer]
    folder = expanded(config.cache_dir) / sha256(json.dumps(settings).encode()).hexdigest()[:20]
    corpus = _read_entry(folder, config, given)
    if corpus is None:
        fraction = config.val_fraction
        splits = [
            _split(_with_text(streams), found.documents, fraction) for (_, streams), found in zip(opened, contents)
        ]

        def check_unchanged():
            for before, now in zip(files, state(*(streams for _, streams in opened))):
                if before != now:
                    raise InputError(f"{now[0]}: changed while it was prepared; start again")

        _make_entry(folder, config, whole, splits, given, check_unchanged)
        corpus = _read_entry(folder, config, given)
        if corpus is None:
            raise InputError(f"data.cache_dir: {folder} is damaged and cannot be replaced; remove it")
    if not all(len(part.val) for part in corpus.parts):
        raise InputError(
            f"data.val_part {config.val_part!r}: the validation text has no document in that half; more documents, or a single one, have both"
        )
    for (each, streams), found, part in zip(opened, contents, corpus.parts):
        train, val, fraction = len(part.train), len(part.val), config.val_fraction
        if "validation" not in streams and val > (train + val) * max(0.5, 2 * fraction):
            _tell_once(
                f"warning: data.source {each.source!r}: {train:,} tokens for training and {val:,} for validation, with "
                f"data.val_fraction {fraction}: a hash picks whole documents; {UNDIVIDED}"
            )
        without = [f"{found.empty:,} row{'s' * (found.empty > 1)} without text"][: found.empty]
        left_out = ", ".join([*streams.left_out, *without])
        if told := [*filter(None, [streams.kept, left_out and f"left out: {left_out}"])]:
            _tell_once(f"data.source {each.source!r}: {'; '.join(told)}")
    return corpus


@cache  # a comparison opens its corpus for every run
def _tell_once(line):
    print(printable(line), file=sys.stderr)


def _with_text(streams):
    return {split: lambda stream=stream: filter(None, stream()) for split, stream in streams.items()}


def _split(streams, documents, fraction):
    split = _train_and_val(streams, documents, fraction)
    return split | {half: lambda half=half: _half(split["val"], half) for half in HALVES}


def _half(documents, half):
    first = list(islice(documents(), 2))
    if len(first) == 1:
        length = sum(map(len, parts(first[0])))
        ends = (0, length // 2) if half == "tuning" else (length // 2, length)
        return iter([Slice(first[0], *ends)] if ends[0] < ends[1] else [])
    return (document for document in documents() if HALVES[digest(document)[8] % 2] == half)


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
        return int.from_bytes(digest(document)[:8], "big") < fraction * 2**64

    return {
        "train": lambda: (document for document in train() if not in_validation(document)),
        "val": lambda: filter(in_validation, train()),
    }


def _make_entry(folder, config, content, splits, given, check_unchanged):
    with writing(f"data.cache_dir {config.cache_dir!r}"), _workplace(folder) as work:
        if _read_entry(folder, config, given) is not None:  # another process has just made it
            return
        work.mkdir(exist_ok=True)
        try:
            try:
                _write_entry(work, config, content, splits, given)
            finally:  # also where it failed, or was interrupted: what is there is of no text that has this hash
                check_unchanged()
        except Exception as error:  # but not when killed, nor where a network or a disk failed that will work again
            is_kept = any(each.streaming for each in config.each()) and isinstance(error, HubError | OSError)
            if not (is_kept and (work / MANIFEST).is_file()):
                shutil.rmtree(work)
            raise
        shutil.rmtree(folder, ignore_errors=True)  # if damaged
        try:
            work.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was first, with the same content
                raise


@contextmanager
def _workplace(folder) -> Iterator[Path]:
    """The folder in which an entry is prepared, perhaps begun by a process that was killed; others wait for their turn.

    Where there are no locks, each process has one of its own, which no other continues.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            import fcntl  # Windows has none

            # A file, as NFS locks no folders for other computers; it stays, as others may be waiting for this very one.
            lock = stack.enter_context(folder.with_name(f".{folder.name}.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process, however that ends
            work = folder.with_name(f".unfinished-{folder.name}")
        except (ImportError, OSError):  # or a file system without locks
            work = Path(stack.enter_context(TemporaryDirectory(dir=folder.parent, prefix=".unfinished-")), "entry")
        yield work


def _write_entry(folder, config, content, splits, given):
    start = time.monotonic()
    name = _name(config)

    def train():
        if given:
            return given.tokenizer
        # A char tokenizer needs the characters of the validation text too, or that text would have no loss.
        seen = ("train", "val") if config.tokenizer.kind == "char" else ("train",)
        return train_tokenizer(config.tokenizer, *(chain(*(split[key]() for key in seen)) for split in splits))

    streams = {key: [split[key] for split in splits] for key in splits[0]}
    manifest = write_streams(
        folder,
        {"source": name, "hash": content},
        config.tokenizer,
        train,
        streams,
        given and given.end_of_text,
        [each.max_tokens for each in config.each()],
    )
    for each, *sizes in zip(config.each(), manifest["train"]["sources"], manifest["val"]["sources"]):
        counts = [size["documents"] for size in sizes]
        if not all(counts):
            raise InputError(
                f"data.source {each.source!r}: expected documents for training and for validation, got "
                f"{counts[0]} and {counts[1]} at data.val_fraction {config.val_fraction}; {UNDIVIDED}"
            )
    bytes_, tokens = (
        " + ".join(f"{sum(size[key] for size in manifest[split]['sources']):,}" for split in ("train", "val"))
        for key in ("bytes", "tokens")
    )
    print(
        f"tokenized {printable(name)}: {bytes_} bytes of text (training + validation) are {tokens} tokens, "
        f"in {time.monotonic() - start:.1f} s",
        file=sys.stderr,
    )


def _name(config):
    return " + ".join(each.source for each in config.each())


@reading()
def _read_entry(folder, config, given):
    """The cached corpus, or None if it is missing or damaged; InputError if it may be neither, and cannot be read."""
    streams = {"train": "train", "val": "val" if config.val_part == "all" else config.val_part}
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        own = given or CorpusTokenizer.ours(load_tokenizer(folder))
        dtype, tokens, sizes, stretches = token_type(own.tokenizer), {}, {}, {}
        for key, stream in streams.items():
            tokens[key] = numpy.load(folder / f"{stream}.npy", mmap_mode="r")
            # a text prepared by an earlier version is one source
            sizes[key] = manifest[stream].get("sources", [manifest[stream]])
            ends = [*accumulate(size["tokens"] for size in sizes[key])]
            # an earlier version cut ids with gaps to the width of their number
            if len(tokens[key]) != ends[-1] or tokens[key].dtype != dtype:
                return None
            stretches[key] = [tokens[key][start:end] for start, end in zip([0, *ends], ends)]
        bytes_ = {key: [size["bytes"] for size in sizes[key]] for key in streams}
        named = [(each.name, each.source, each.weight) for each in config.sources] or [
            (config.source, config.source, 1)
        ]
        parts = zip(named, stretches["train"], stretches["val"], bytes_["val"])
        return Corpus(
            **tokens,
            **vars(own),
            hash=manifest["hash"],
            train_bytes=sum(bytes_["train"]),
            val_bytes=sum(bytes_["val"]),
            source=_name(config),
            parts=tuple(Part(*name, *rest) for name, *rest in parts),
        )
    except OSError as error:
        if error.errno not in (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
            raise
        return None
    except (EOFError, ValueError, LookupError, TypeError, AttributeError):
        return None
