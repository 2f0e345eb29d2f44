"""Where text comes from, as streams of documents: built-in texts, local files, Hugging Face data sets.

A stream is a function that starts the documents over, because text is read several times: to hash it, to train the
tokenizer and to encode it. The documents are never all in memory. A table row without text is an empty document.
"""

import csv
import glob
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice, takewhile
from pathlib import Path
from types import MappingProxyType

from base import InputError, expanded, reading
from data import synthetic
from data.config import DataConfig
from data.documents import REPLACE_HINT, Document, TextFile, open_unpacked
from data.python_library import python_docs, python_source

_SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".parquet")
_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # written by datasets
_VALIDATION = ("validation", "valid", "val", "dev", "eval", "evaluation")
_SPLITS = {"train": ("train", "training"), "validation": _VALIDATION, "test": ("test", "testing")}
_SPLIT_OF = {word: split for split, words in _SPLITS.items() for word in words}
_NUMBER = re.compile(r"[-_.]?\d+(-of-\d+(-[0-9a-f]+)?)?$")  # as in train-00000-of-00002, and with a hash after it


class HubError(InputError):
    """A data set that the Hugging Face hub does not give, now."""


class Streams(dict[str, Callable[[], Iterator[Document]]]):
    """The document streams of a source: a function for "train", and one for "validation" if the source has its own.

    files: of each split, those that it is read from; none if it has no files, or some that are not known.
    identity: of a stream from the hub, what names its text: repository, commit, subset, split, column and max_tokens.
    kept, left_out: in words, how files were divided, or the commit of a stream, and what was left out, where a user may not
    expect it.
    """

    files: Mapping[str, Sequence[Path]] = MappingProxyType({})
    identity: tuple = ()
    kept: str = ""
    left_out: tuple[str, ...] = ()


@reading()
def open_source(config: DataConfig) -> Streams:
    """The streams of a source; InputError if it cannot be found."""
    source, path = config.source, expanded(config.source)
    is_saved = path.is_dir() and any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    of_hub = [key for key in ("streaming", "revision") if getattr(config, key)]
    of_hub += ["split"] * (config.split != "train" and not is_saved)
    if of_hub:
        is_ours = source in ("python_docs", "python_source") or source.startswith(synthetic.PREFIX) or path.exists()
        if is_ours or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
            raise InputError(
                f"data.{of_hub[0]}: expected the name of a Hugging Face data set as data.source, got {source!r}"
            )
    if source == "python_docs":
        return Streams(train=partial(python_docs, config))
    if source == "python_source":
        return Streams(train=python_source)
    if task := synthetic.task_of(source):
        return Streams({split: partial(synthetic.documents, task, split) for split in synthetic.DOCUMENTS})
    if path.is_dir():
        return _saved_dataset(config, path) if is_saved else _files(config, _inside(path), path)
    if path.is_file():
        if _suffix(path) not in _SUFFIXES:
            raise InputError(f"data.source {source!r}: expected a file that ends in {', '.join(_SUFFIXES)}")
        return _files(config, [path], path.parent)
    if glob.has_magic(source):
        root = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        _name_what_is_closed(path)
        return _files(config, map(Path, glob.glob(str(path), recursive=True)), root)
    if source.startswith(synthetic.PREFIX):
        known = ", ".join(synthetic.PREFIX + task for task in synthetic.TASKS)
        raise InputError(f"data.source {source!r}: expected one of {known}")
    local = _suffix(path) in _SUFFIXES or source[:1] in "./~" or source.count("/") > 1
    if local or ("/" in source and path.parent.is_dir()):
        raise InputError(f"data.source {source!r}: no such file or folder")
    return _hub_stream(config) if config.streaming else _hub_dataset(config)


def _inside(folder):
    def refuse(error):  # otherwise os.walk leaves out, as rglob does, what a closed folder holds, without a word
        raise error

    seen = set()  # a link may lead to where one has been, or comes from
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(
            (name for name in folders if name[0] != "."), key=lambda name: (os.path.islink(Path(place, name)), name)
        )
        yield from (Path(place, name) for name in files if name[0] != ".")


def _name_what_is_closed(pattern):
    looked_into = (
        part if part.name == "**" else part.parent for part in (pattern, *pattern.parents) if glob.has_magic(part.name)
    )
    for folders in sorted(set(looked_into)):
        for folder in glob.glob(f"{folders}/", recursive=True):
            os.scandir(folder).close()  # glob leaves out, without a word, what a closed folder holds


def _unpacked(path):
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def _suffix(path):
    return _unpacked(path).suffix.lower()


def _files(config, paths, root):
    found = sorted({path for path in paths if path.name not in _METADATA and path.is_file()})
    paths = [path for path in found if _suffix(path) in _SUFFIXES]
    if not paths:
        raise InputError(f"data.source {config.source!r}: expected files that end in {', '.join(_SUFFIXES)}, got none")
    splits, titles = _splits_by_name(config, paths, root)
    train, validation, test = ([path for path in paths if splits[path] == split] for split in _SPLITS)
    if not train:
        shown = ", ".join(path.relative_to(root).as_posix() for path in paths[:5])
        reason = f"expected files to train on, got only {shown:.500}; to train on one of them, name that file itself"
        raise InputError(f"data.source {config.source!r}: {reason}")
    files = {"train": train} | ({"validation": validation} if validation else {})
    streams = Streams({split: partial(_read_files, config, files[split]) for split in files})
    streams.files = files
    others = Counter(_suffix(path) or path.name for path in found if _suffix(path) not in _SUFFIXES)
    for_test = [f"{len(test)} for test"] if test else []
    streams.left_out = (*for_test, *(f"{n} {ending}" for ending, n in others.most_common(5)))
    if validation or titles or streams.left_out:
        streams.kept = f"{len(train)} file{'s' * (len(train) > 1)} for training"
        streams.kept += f" (even {titles[0]}, since none is called train)" if titles else ""
        streams.kept += f", {len(validation)} for validation" if validation else ""
    return streams


def _splits_by_name(config, paths, root):
    """The split of each path, and the names whose words were taken for a title's since no name says train."""
    asked = expanded(config.source).relative_to(root)  # a file or glob that itself says test asks for it
    asked = {_SPLIT_OF.get(word) for part in asked.parts for word in _words(part)}
    named = {path: _split_of(path.relative_to(root), asked) for path in paths}
    splits, titles = {path: plain or any_word for path, (plain, any_word) in named.items()}, []
    if "train" not in splits.values():  # then a split's word is just as likely part of a title
        titles = [path.name for path, (plain, any_word) in named.items() if any_word and not plain]
        splits = {path: plain for path, (plain, _) in named.items()}
    if unclear := [path for path in paths if " and " in splits[path]]:
        raise InputError(f"{unclear[0]}: expected one split in the name, got {splits[unclear[0]]}")
    return {path: split or "train" for path, split in splits.items()}, titles


def _split_of(path, asked):
    """The split of a file by its own name or else a folder's: from a name that says only that, and from any name."""
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
        else:
            yield from _read_table(config, path)


def _read_table(config, path):
    # Not with datasets: for a local file it calls the hub, takes the name for a pattern, reads "NA" in a csv as
    # missing, and guesses a column's type from its first rows.
    read = {".csv": _csv_column, ".parquet": _parquet_column}.get(_suffix(path), _json_column)
    try:
        if path.stat().st_size:
            yield from _texts(config, path, read(config, path))
    except InputError:
        raise
    except UnicodeDecodeError:  # it knows the place in a block, not in the file
        for _ in TextFile(path, "strict"):
            pass
    except (OSError, ValueError, EOFError, RecursionError, csv.Error, zlib.error) as error:  # pyarrow's too
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _texts(config, name, values):
    for number, text in enumerate(values, 1):
        if not isinstance(text, str | None):
            reason = f"expected text in row {number} of {name}, got {text!r:.60}"
            raise InputError(f"data.text_column {config.text_column!r}: {reason}")
        yield text or ""


def _check_column(config, name, columns):
    if [*columns].count(config.text_column) != 1:
        reason = f"expected one such column in {name}, got {' '.join(', '.join(map(str, columns)).split()):.500}"
        raise InputError(f"data.text_column {config.text_column!r}: {reason}")


def _csv_column(config, path):
    csv.field_size_limit(2**31 - 1)  # the default, 128 kB, is less than many documents
    with io.TextIOWrapper(open_unpacked(path), encoding="utf-8-sig", errors=config.errors, newline="") as file:
        rows, line = csv.reader(file, strict=True), 1  # the line on which a row begins: it may span several
        try:
            header = next(filter(None, rows), None)
            if header is None:
                return
            _check_column(config, path, header)
            place = header.index(config.text_column)
            line = rows.line_num + 1
            for row in rows:
                if len(row) not in (0, len(header)):
                    reason = f"expected {len(header)} cells, as in the header, got {len(row)}"
                    raise InputError(f"{path}, line {line}: {reason}; text with a comma or line break needs quotes")
                yield from row[place : place + 1]  # nothing for a blank line
                line = rows.line_num + 1
        except csv.Error as error:
            reason = f"{error}; a quoted cell ends at its quote, and a quote within it is written twice"
            raise InputError(f"{path}, line {line}: {reason}") from None


def _parquet_column(config, path):
    import pyarrow.parquet  # takes 0.1 s to load

    with pyarrow.parquet.ParquetFile(path) as file:
        _check_column(config, path, file.schema_arrow.names)
        batches = file.iter_batches(batch_size=1000, columns=[config.text_column])
        yield from _arrow_values(config, path, (batch.column(0) for batch in batches))


def _arrow_values(config, name, columns):
    """The values of a column that comes in pieces. Its text is decoded here: to pyarrow it can only be UTF-8."""
    import pyarrow

    number = 0
    for column in columns:
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        is_text = kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
        for value in (column.cast(pyarrow.large_binary()) if is_text else column).to_pylist():
            number += 1
            try:
                yield value.decode("utf-8", config.errors) if is_text and value is not None else value
            except UnicodeDecodeError as error:
                reason = f"not UTF-8 at byte {error.start} of its text: {error.reason}; {REPLACE_HINT}"
                raise InputError(f"{name}, row {number}: {reason}") from None


def _json_column(config, path):
    columns = {}  # rows may have different keys
    for number, row in enumerate(_json_rows(config, path), 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: expected a JSON object, got {ascii(row)[:40]}")
        columns.update(row)
        yield row.get(config.text_column)
    if columns:
        _check_column(config, path, columns)


def _json_rows(config, path):
    with open_unpacked(path) as file:
        is_list = file.read(100).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        file.seek(0)
        if is_list:
            yield from json.loads(file.read().decode("utf-8-sig", config.errors))
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line.decode("utf-8-sig", config.errors))
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{path}, line {number}: {error}") from None
                yield row


def _saved_dataset(config, path):
    import datasets  # takes 2 s to load

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever pyarrow raises
        raise InputError(f"data.source {config.source!r}: {type(error).__name__}: {error}") from None
    return _splits(config, saved if isinstance(saved, dict) else {config.split: saved})


def _hub_dataset(config):
    import datasets  # takes 2 s to load

    which = {"revision": config.revision} if config.revision else {}
    with _hub_errors(config):
        if not datasets.config.HF_HUB_OFFLINE:  # datasets itself would try for 23 s
            _hub_info(config)
        names = datasets.get_dataset_split_names(config.source, config.subset, **which)
        wanted = {config.split, *(name for name in names if name in _VALIDATION)}
        tables = {name: datasets.load_dataset(config.source, config.subset, split=name, **which) for name in wanted}
    return _splits(config, tables)


def _hub_info(config):
    from huggingface_hub import HfApi

    which = {"revision": config.revision} if config.revision else {}
    return HfApi().dataset_info(config.source, timeout=5, **which)


@contextmanager
def _hub_errors(config):
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # network, authorization, unknown names, broken files
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise HubError(
            f"data.source {config.source!r}: no such file or folder, and as a Hugging Face data set: {reason} "
            "(HF_HUB_OFFLINE=1 uses one that was downloaded before)"
        ) from None


def _hub_stream(config):
    """Streams that ask the hub for no text before they are read; of a commit, for nothing at all."""
    commit = config.revision
    if not re.fullmatch("[0-9a-f]{40}", commit or ""):
        with _hub_errors(config):
            commit = _hub_info(config).sha

    def rows(split):
        import datasets  # takes 2 s to load

        with _hub_errors(config):
            how = {"split": split, "revision": commit, "streaming": True}
            table = datasets.load_dataset(config.source, config.subset, **how)
            _check_column(config, config.source, table.column_names or next(iter(table), {}))
            batches = table.select_columns([config.text_column]).iter(batch_size=1000)
            texts = (text for batch in batches for text in batch[config.text_column])
            for text in _texts(config, config.source, texts):
                text.encode()  # an unpaired surrogate has no bytes, which is for this place to say
                yield text

    @cache  # of requests
    def own():
        import datasets  # takes 2 s to load

        with _hub_errors(config):
            names = datasets.get_dataset_split_names(config.source, config.subset, revision=commit)
        return next((name for name in _VALIDATION if name in names and name != config.split), None)

    def validation():
        left = int(4 * config.val_fraction * config.max_tokens)
        for text in rows(own() or config.split):
            left -= len(text.encode())
            if left < 0:
                return
            yield text

    def train():
        if not any(validation()):
            size = f"4 * data.val_fraction {config.val_fraction} * data.max_tokens {config.max_tokens}"
            raise InputError(f"data.source {config.source!r}: no text to validate on in the first {size} bytes")
        held_out = 0 if own() else sum(1 for _ in validation())
        return islice(rows(config.split), held_out, None)

    streams = Streams(train=train, validation=validation)
    streams.identity = config.source, commit, config.subset, config.split, config.text_column, config.max_tokens
    streams.kept = f"commit {commit}, which data.revision can name"
    return streams


def _splits(config, tables):
    if config.split not in tables:
        raise InputError(f"data.split {config.split!r}: expected one of {', '.join(tables)}")
    taken = re.findall(r"[\w.]+", config.split)  # the hub takes train+validation and validation[:50%] too
    validation = [name for name in _VALIDATION if name in tables and name not in taken and "all" not in taken]
    chosen = {"train": config.split} | dict(zip(["validation"], validation))
    for name in chosen.values():
        _check_column(config, config.source, tables[name].column_names)
    streams = Streams({split: partial(_dataset_texts, config, tables[name]) for split, name in chosen.items()})
    files = {split: [Path(file["filename"]) for file in tables[name].cache_files] for split, name in chosen.items()}
    streams.files = files if all(files.values()) else {}
    return streams


def _dataset_texts(config, table):
    batches = table.select_columns([config.text_column]).with_format("arrow").iter(batch_size=1000)
    columns = (batch[config.text_column] for batch in batches)
    return _texts(config, config.source, _arrow_values(config, config.source, columns))
