"""Where text comes from, as streams of documents: built-in texts, local files, Hugging Face data sets.

A stream is a function that starts the documents over, because text is read several times: to hash it, to train the
tokenizer and to encode it. The documents are never all in memory. A table row without text is an empty document.
"""

import glob
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

from base import InputError
from data import synthetic
from data.config import DataConfig
from data.documents import Document, TextFile, suffix, unpacked
from data.python_library import python_docs, python_source
from data.tables import TABLES, check_column, read_table, texts

_SUFFIXES = (".txt", *TABLES)
_METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # written by datasets
_VALIDATION = ("validation", "valid", "val", "dev", "eval", "evaluation")
_SPLIT_OF = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLIT_OF |= dict.fromkeys(_VALIDATION, "validation")
_NUMBER = re.compile(r"[-_.]?\d+(-of-\d+(-[0-9a-f]+)?)?$")  # as in train-00000-of-00002, and with a hash after it


class Streams(dict[str, Callable[[], Iterator[Document]]]):
    """The document streams of a source: a function for "train", and one for "validation" if the source has its own.

    kept, left_out: in words, how files were divided and what was left out, where a user may not expect it.
    """

    kept: str = ""
    left_out: tuple[str, ...] = ()


def open_source(config: DataConfig) -> Streams:
    """The streams of a source; InputError if it cannot be found."""
    source = config.source
    path = Path(source).expanduser()
    if source == "python_docs":
        return Streams(train=partial(python_docs, config))
    if source == "python_source":
        return Streams(train=python_source)
    if task := synthetic.task_of(source):
        return Streams({split: partial(synthetic.documents, task, split) for split in synthetic.DOCUMENTS})
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return _saved_dataset(config, path)
    if path.is_dir():
        inside = (file for file in path.rglob("*") if not re.search(r"(^|/)\.", file.relative_to(path).as_posix()))
        return _files(config, inside, path)
    if path.is_file():
        if suffix(path) not in _SUFFIXES:
            raise InputError(f"data.source {source!r}: expected a file that ends in {', '.join(_SUFFIXES)}")
        return _files(config, [path], path.parent)
    if glob.has_magic(source):
        root = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        return _files(config, map(Path, glob.glob(str(path), recursive=True)), root)
    if source.startswith(synthetic.PREFIX):
        known = ", ".join(synthetic.PREFIX + task for task in synthetic.TASKS)
        raise InputError(f"data.source {source!r}: expected one of {known}")
    local = suffix(path) in _SUFFIXES or source[:1] in "./~" or source.count("/") > 1
    if local or ("/" in source and path.parent.is_dir()):
        raise InputError(f"data.source {source!r}: no such file or folder")
    return _hub_dataset(config)


def _files(config, paths, root):
    found = sorted({path for path in paths if path.name not in _METADATA and path.is_file()})
    paths = [path for path in found if suffix(path) in _SUFFIXES]
    if not paths:
        raise InputError(f"data.source {config.source!r}: expected files that end in {', '.join(_SUFFIXES)}, got none")
    splits, titles = _splits_by_name(config, paths, root)
    train = [path for path in paths if splits[path] in ("", "train")]
    validation = [path for path in paths if splits[path] == "validation"]
    if not train:
        shown = ", ".join(path.relative_to(root).as_posix() for path in paths[:5])
        raise InputError(
            f"data.source {config.source!r}: expected files to train on, got only {shown:.500}; to train on one of "
            "them, name that file itself"
        )
    files = {"train": train} | ({"validation": validation} if validation else {})
    streams = Streams({split: partial(_read_files, config, files[split]) for split in files})
    test = len(paths) - len(train) - len(validation)
    others = Counter(suffix(path) or path.name for path in found if suffix(path) not in _SUFFIXES)
    streams.left_out = (*[f"{test} for test"][:test], *(f"{n} {ending}" for ending, n in others.most_common(5)))
    if validation or titles or streams.left_out:
        streams.kept = f"{len(train)} file{'s' * (len(train) > 1)} for training"
        streams.kept += f" (even {titles[0]}, since none is called train)" if titles else ""
        streams.kept += f", {len(validation)} for validation" if validation else ""
    return streams


def _splits_by_name(config, paths, root):
    """The split that the name of each path says, or "", and the names whose words were taken for those of a title."""
    asked = Path(config.source).expanduser().relative_to(root)  # a file or glob that itself says test asks for it
    asked = {_SPLIT_OF.get(word) for part in asked.parts for word in _words(part)}
    named = {path: _split_of(path.relative_to(root), asked) for path in paths}
    splits, titles = {path: plain or any_word for path, (plain, any_word) in named.items()}, []
    if "train" not in splits.values():  # then a split's word is just as likely part of a title
        titles = [path.name for path, (plain, any_word) in named.items() if any_word and not plain]
        splits = {path: plain for path, (plain, _) in named.items()}
    if unclear := [path for path in paths if " and " in splits[path]]:
        raise InputError(f"{unclear[0]}: expected one split in the name, got {splits[unclear[0]]}")
    return splits, titles


def _split_of(path, asked):
    """The split of a file by its own name or else a folder's: from a name that says only that, and from any name."""
    plain, any_word = "", ""
    for name in (unpacked(path).stem, *reversed(path.parent.parts)):
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
        if suffix(path) == ".txt":
            text = TextFile(path, config.errors)
            start = list(islice(text, 2))
            yield from [text] if len(start) > 1 else start
        elif path.stat().st_size:
            yield from read_table(config, path)


def _saved_dataset(config, path):
    import datasets  # takes 2 s to load

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever pyarrow raises
        raise InputError(f"data.source {config.source!r}: {type(error).__name__}: {error}") from None
    return _splits(config, saved if isinstance(saved, dict) else {config.split: saved})


def _hub_dataset(config):
    import datasets  # takes 2 s to load
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
            "(HF_HUB_OFFLINE=1 uses one that was downloaded before)"
        ) from None
    return _splits(config, tables)


def _splits(config, tables):
    if config.split not in tables:
        raise InputError(
            f"data.split {config.split!r}: expected one of {', '.join(tables)}, the splits of {config.source}"
        )
    taken = re.findall(r"[\w.]+", config.split)  # the hub takes train+validation and validation[:50%] too
    validation = [name for name in _VALIDATION if name in tables and name not in taken and "all" not in taken]
    chosen = {"train": config.split} | dict(zip(["validation"], validation))
    for name in chosen.values():
        check_column(config, config.source, tables[name].column_names)
    return Streams({split: partial(_dataset_texts, config, tables[name]) for split, name in chosen.items()})


def _dataset_texts(config, table):
    batches = table.select_columns([config.text_column]).iter(batch_size=1000)
    return texts(config, config.source, (text for batch in batches for text in batch[config.text_column]))
