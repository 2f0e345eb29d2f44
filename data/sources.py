"""Where text comes from, as streams of documents: the standard library, local files, Hugging Face data sets.

A stream is a function that starts it afresh, because text is read several times: to hash it, to train the tokenizer
and to encode it. Documents are never all in memory, and a long text file is not either. A row of a table that has no
text is an empty document.
"""

import ast
import codecs
import csv
import glob
import gzip
import inspect
import io
import json
import os
import re
import sysconfig
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice, takewhile
from pathlib import Path
from typing import Literal

from pydantic import Field

from base import InputError
from data import synthetic
from data.tokenizer import Document, TokenizerConfig
from settings import FrozenConfig

_SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".parquet")
_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # written by datasets
_PART_BYTES = 2**24  # of a text file in memory at once
_VALIDATION = ("validation", "valid", "val", "dev", "eval", "evaluation")
_SPLIT_OF = {"train": "train", "training": "train", **dict.fromkeys(_VALIDATION, "validation")}
_SPLIT_OF |= {"test": "test", "testing": "test"}
_NUMBER = re.compile(r"[-_.]?\d+(-of-\d+(-[0-9a-f]+)?)?$")  # as in train-00000-of-00002, and with a hash after it
_NOT_THE_LIBRARY = {"test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__"}


class DataConfig(FrozenConfig):
    source: str = Field("python_docs", min_length=1)
    """python_docs, python_source, a txt, json, jsonl, csv or parquet file, a folder or glob of such files, a folder
    written by datasets' save_to_disk, the name of a Hugging Face data set, or synthetic/copy, reverse, k-back,
    induction, recall or addition. Of several files those called validation, valid, val, dev, eval or evaluation are
    for validation, those called test or testing are left out, and all others are for training: by the file's name or
    else a folder's (validation.txt, test-00000-of-00002.parquet) or, if any file is called train or training, by a
    word of it (wiki.valid.txt). All but parquet may be compressed by gzip, as in txt.gz."""
    subset: str | None = None
    """Configuration of a Hugging Face data set, where it has several."""
    split: str = "train"
    """Split of a Hugging Face data set to train on."""
    text_column: str = "text"
    """Column that holds the text, in all but text files; rows without text are passed over."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes in local files that are not UTF-8: refuse the file, or read U+FFFD in their place."""
    val_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the text kept for validation, where the source has no validation split of its own."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes tokens."""
    cache_dir: str = ".cache"
    """Folder for tokenized text."""


class TextFile:
    """A document too long to hold: iterating over it reads the file anew, in parts."""

    def __init__(self, path: Path, errors: str):
        self.path, self.errors = path, errors

    def __iter__(self) -> Iterator[str]:
        """The text without its byte-order mark; InputError names the file, and the first byte that is not UTF-8."""
        decoder, start = codecs.getincrementaldecoder("utf-8")(self.errors), 0
        try:
            with _open(self.path) as file:
                while True:
                    block = file.read(_PART_BYTES)
                    held = len(decoder.getstate()[0])  # bytes of a character that the last part ended within
                    part = decoder.decode(block, final=not block)
                    yield from filter(None, [part if start else part.removeprefix("\ufeff")])
                    start += len(block)
                    if not block:
                        return
        except UnicodeDecodeError as error:
            where = start - held + error.start
            reason = f"not UTF-8 at byte {where}: {error.reason}; data.errors=replace reads U+FFFD there"
            raise InputError(f"{self.path}: {reason}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.path}: {getattr(error, 'strerror', None) or error}") from None


class Streams(dict[str, Callable[[], Iterator[Document]]]):
    """The document streams of a source, by name: a function for "train", and maybe one for "validation".

    kept, left_out: in words, what is for which and what for nothing, where a user may not expect it.
    """

    kept: str = ""
    left_out: tuple[str, ...] = ()


def open_source(config: DataConfig) -> Streams:
    """The streams of a source; InputError where it can't be found."""
    source = config.source
    path = Path(source).expanduser()
    if source == "python_docs":
        return Streams(train=partial(_python_docs, config))
    if source == "python_source":
        return Streams(train=_python_source)
    if task := synthetic.task_of(source):
        return Streams(synthetic.streams(task))
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _saved_dataset(config, path)
    if path.is_dir():
        inside = (file for file in path.rglob("*") if not re.search(r"(^|/)\.", file.relative_to(path).as_posix()))
        return _files(config, inside, path)
    if path.is_file():
        if _suffix(path) not in _SUFFIXES:
            raise InputError(f"data.source {source!r}: not one of {', '.join(_SUFFIXES)}")
        return _files(config, [path], path.parent)
    if glob.has_magic(source):
        root = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        return _files(config, map(Path, glob.glob(str(path), recursive=True)), root)
    if source.startswith(synthetic.PREFIX):
        raise InputError(f"data.source {source!r}: known are {', '.join(map(synthetic.source_of, synthetic.TASKS))}")
    local = _suffix(path) in _SUFFIXES or source[:1] in "./~" or source.count("/") > 1
    if local or ("/" in source and path.parent.is_dir()):
        raise InputError(f"data.source {source!r}: no such file or folder")
    return _hub_dataset(config)


def _unpacked(path):
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def _suffix(path):
    return _unpacked(path).suffix.lower()


def _open(path):
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _files(config, paths, root):
    found = sorted({path for path in paths if path.name not in _METADATA and path.is_file()})
    paths = [path for path in found if _suffix(path) in _SUFFIXES]
    if not paths:
        raise InputError(f"data.source {config.source!r}: no file there ends in {', '.join(_SUFFIXES)}")
    asked = Path(config.source).expanduser().relative_to(root)  # a file or glob that says test itself wants it
    asked = {_SPLIT_OF.get(word) for part in asked.parts for word in _words(part)}
    named = {path: _split_of(path.relative_to(root), asked) for path in paths}
    split, titles = {path: plain or any_word for path, (plain, any_word) in named.items()}, []
    if "train" not in split.values():  # then a split's word is as likely one of a title
        titles = [path.name for path, (plain, any_word) in named.items() if any_word and not plain]
        split = {path: plain for path, (plain, _) in named.items()}
    if unclear := [path for path in paths if " and " in split[path]]:
        raise InputError(f"{unclear[0]}: its name says {split[unclear[0]]}, expected one of the two")
    train = [path for path in paths if split[path] in ("", "train")]
    validation = [path for path in paths if split[path] == "validation"]
    if not train:
        shown = ", ".join(path.relative_to(root).as_posix() for path in paths[:5])
        raise InputError(
            f"data.source {config.source!r}: no file to train on, only {shown:.500}; a file given by its own name is "
            "trained on whatever it is called"
        )
    streams = Streams(train=partial(_read_files, config, train))
    if validation:
        streams["validation"] = partial(_read_files, config, validation)
    test = len(paths) - len(train) - len(validation)
    others = Counter(_suffix(path) or path.name for path in found if _suffix(path) not in _SUFFIXES)
    streams.left_out = (*[f"{test} for test"][:test], *(f"{n} {ending}" for ending, n in others.most_common(5)))
    if validation or titles or streams.left_out:
        streams.kept = f"{len(train)} file{'s' * (len(train) > 1)} for training"
        streams.kept += f" (even {titles[0]}, since none is called train)" if titles else ""
        streams.kept += f", {len(validation)} for validation" if validation else ""
    return streams


def _split_of(path, asked):
    """What a file is for by its own name, else a folder's: by the first that says nothing else, and by the first."""
    plain, any_word = "", ""
    for name in (_unpacked(path).stem, *reversed(path.parent.parts)):
        words = _words(name)
        found = " and ".join(sorted({_SPLIT_OF[word] for word in words if word in _SPLIT_OF} - asked))
        any_word = any_word or found
        plain = plain or found * (len(words) == 1)
    return plain, any_word


def _words(name):
    words = re.split(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])", _NUMBER.sub("", name))
    return {word.lower().removesuffix("set") for word in words} - {""}


def _read_files(config, paths):
    for path in paths:
        if _suffix(path) == ".txt":
            text = TextFile(path, config.errors)
            start = list(islice(text, 2))
            yield from [text] if len(start) > 1 else start
        elif path.stat().st_size:
            yield from _read_table(config, path)


def _read_table(config, path):
    # Not through datasets: for a local file it calls the hub, takes the name for a pattern, reads "NA" in a csv as
    # missing, and cuts a column's type from its first rows.
    read = {".csv": _csv_column, ".parquet": _parquet_column}.get(_suffix(path), _json_column)
    try:
        yield from _texts(config, path, read(config, path))
    except InputError:
        raise
    except UnicodeDecodeError:  # which knows the place in a block, not in the file
        for _ in TextFile(path, "strict"):
            pass
    except (OSError, ValueError, EOFError, RecursionError, csv.Error, zlib.error) as error:  # pyarrow's too
        raise InputError(f"{path}: {error}") from None


def _csv_column(config, path):
    csv.field_size_limit(2**31 - 1)  # 128 kB otherwise, less than many a document
    with io.TextIOWrapper(_open(path), encoding="utf-8-sig", errors=config.errors, newline="") as file:
        rows, line = csv.reader(file, strict=True), 1  # where a row begins: it may have several lines
        try:
            header = next(filter(None, rows), [])
            _check_column(config, path, header)
            place = header.index(config.text_column)
            line = rows.line_num + 1
            for row in rows:
                if len(row) not in (0, len(header)):
                    reason = f"expected {len(header)} cells, as in the header, got {len(row)}"
                    raise InputError(f"{path}, line {line}: {reason}; text with a comma or line break needs quotes")
                yield from row[place : place + 1]  # nothing on a blank line
                line = rows.line_num + 1
        except csv.Error as error:
            reason = f"{error}; a quoted cell ends at its quote, and a quote within it is written twice"
            raise InputError(f"{path}, line {line}: {reason}") from None


def _parquet_column(config, path):
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        _check_column(config, path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=1000, columns=[config.text_column]):
            yield from batch.column(0).to_pylist()


def _json_column(config, path):
    columns = {}  # rows may differ in what they have
    for number, row in enumerate(_json_rows(config, path), 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: {ascii(row)[:40]} is not a JSON object")
        columns.update(row)
        yield row.get(config.text_column)
    _check_column(config, path, columns)


def _json_rows(config, path):
    with _open(path) as file:
        is_list = file.read(100).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        file.seek(0)
        if is_list:
            yield from json.loads(file.read().decode("utf-8-sig", config.errors))
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig", config.errors))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number}: {error}") from None
            yield row


def _check_column(config, name, columns):
    if (count := [*columns].count(config.text_column)) != 1:
        shown = " ".join(", ".join(map(str, columns)).split())
        times = f"{count} of that name among " if count else ""
        raise InputError(f"data.text_column {config.text_column!r}: {name} has {times}{shown:.500}")


def _texts(config, name, values):
    for number, text in enumerate(values, 1):
        if not isinstance(text, str | None):
            shown = f"{text!r:.60} in row {number}"
            raise InputError(f"data.text_column {config.text_column!r}: {name} has {shown}, which is not text")
        yield text or ""


def _dataset_texts(config, table):
    for batch in table.select_columns([config.text_column]).iter(batch_size=1000):
        yield from _texts(config, config.source, batch[config.text_column])


def _saved_dataset(config, path):
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever pyarrow raises
        raise InputError(f"data.source {config.source!r}: {type(error).__name__}: {error}") from None
    return _splits(config, saved if isinstance(saved, dict) else {config.split: saved})


def _hub_dataset(config):
    import datasets
    from huggingface_hub import HfApi

    try:
        if not datasets.config.HF_HUB_OFFLINE:  # datasets itself would try for 23 s
            HfApi().dataset_info(config.source, timeout=5)
        names = datasets.get_dataset_split_names(config.source, config.subset)
        wanted = {config.split, *(name for name in names if name in _VALIDATION)}
        tables = {name: datasets.load_dataset(config.source, config.subset, split=name) for name in wanted}
    except Exception as error:  # network, authorization, unknown names, broken files
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"data.source {config.source!r}: no such file or folder, and as a Hugging Face data set: {reason} "
            "(HF_HUB_OFFLINE=1 uses one downloaded before)"
        ) from None
    return _splits(config, tables)


def _splits(config, tables):
    if config.split not in tables:
        raise InputError(f"data.split {config.split!r}: {config.source} has {', '.join(tables)}")
    taken = re.findall(r"[\w.]+", config.split)  # the hub's may be train+validation, or validation[:50%]
    validation = [name for name in _VALIDATION if name in tables and name not in taken and "all" not in taken]
    chosen = {"train": config.split} | dict(zip(["validation"], validation))
    for name in chosen.values():
        _check_column(config, config.source, tables[name].column_names)
    return Streams({part: partial(_dataset_texts, config, tables[name]) for part, name in chosen.items()})


def _library_files():
    """(path inside the standard library, bytes) of its own modules, sorted."""
    root = sysconfig.get_path("stdlib")
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = set(folders) - _NOT_THE_LIBRARY
        paths += [Path(folder, file) for file in files if file.endswith(".py")]
    return [(path, path.read_bytes()) for path in sorted(paths)]


def _python_source():
    for _, source in _library_files():
        try:
            yield from filter(None, [source.decode("utf-8")])
        except UnicodeDecodeError:  # the library has test material in other encodings
            pass


def _python_docs(config):
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        raise InputError("data.source 'python_docs': this Python comes without its pydoc_data") from None
    files = _library_files()
    # Parsing the whole library takes seconds, so its docstrings are kept, under the hash of what they came from.
    sources = sha256(b"".join(source for _, source in files)).hexdigest()[:20]
    kept = Path(config.cache_dir).expanduser() / f"docstrings-{sources}.json"
    try:
        docstrings = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        with writing(config) as work:
            docstrings = _docstrings(source for _, source in files)
            (work / "docstrings").write_text(json.dumps(docstrings), encoding="utf-8")
            (work / "docstrings").replace(kept)
    yield from dict.fromkeys([*(topics[name] for name in sorted(topics)), *docstrings])  # each text once


def _docstrings(sources):
    found = {}
    for source in sources:
        try:
            nodes = ast.walk(ast.parse(source))
        except SyntaxError:  # the library has files that are wrong on purpose
            continue
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False)
                found[inspect.cleandoc(docstring or "")] = None
    return [docstring for docstring in found if len(docstring) >= 60]


@contextmanager
def writing(config):
    """A new folder inside cache_dir, to be renamed into place; what is left of it is removed."""
    try:
        cache = Path(config.cache_dir).expanduser()
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".unfinished-") as folder:
            work = Path(folder) / "entry"
            work.mkdir()
            yield work
    except OSError as error:
        raise InputError(f"data.cache_dir {config.cache_dir!r} can't be written: {error}") from None
