"""The hash of a text, remembered as long as the files that it is read from are unchanged."""

import json
import os
import time
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from base import InputError, expanded, reading, replace_text
from data.config import DataConfig, SourceConfig
from data.documents import Document, parts
from data.sources import Streams

_VERSION = 1  # raise it when the same files and settings give another text
_CLOCK = 2_000_000_000  # ns: a change so soon after another may leave a file's times as they were


class Content(NamedTuple):
    """hash: SHA-256 of the text and of where its documents end. How many documents have text, and how many have none."""

    hash: str
    documents: int
    empty: int


def content(streams: Streams, config: DataConfig) -> Content:
    """What the text of a source is. Reads it only if paths, sizes or times of its files are not those of last time,
    and nothing of a stream: its hash is that of what names it.
    """
    if streams.identity:
        return Content(sha256(json.dumps(streams.identity).encode()).hexdigest(), 1, 0)
    files = state(streams)
    which = [_VERSION, config.model_dump(include={*SourceConfig.model_fields})]
    name = sha256(json.dumps(which).encode()).hexdigest()[:20]
    manifest = expanded(config.cache_dir) / f"source-{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
        kept = json.loads(manifest.read_text(encoding="utf-8"))
        if files and kept["files"] == files:
            return Content(**kept["content"])
    found = _read(streams, config)
    now = time.time_ns()
    if files and files == state(streams) and all(abs(now - t) > _CLOCK for _, _, *times in files for t in times):
        with suppress(OSError):  # it only saves time
            manifest.parent.mkdir(parents=True, exist_ok=True)
            replace_text(manifest, json.dumps({"files": files, "content": found._asdict()}), str(os.getpid()))
    return found


@reading()
def state(*sources: Streams) -> list[list]:
    """Path, size and times of change of each file: the second time changes even where a program sets the first back.

    InputError: a file is gone, or cannot be looked at.
    """
    found = [path.absolute() for streams in sources for paths in streams.files.values() for path in paths]
    return [[str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for path in found for stat in [path.stat()]]


def _read(streams, config):
    whole, count, empty = sha256(), 0, 0
    for split, documents in streams.items():
        before = count
        for document in documents():
            if not document:
                empty += 1
                continue
            try:
                whole.update(f"{split} {sum(map(len, _encoded(document)))} ".encode())
            except UnicodeEncodeError as error:
                where = ascii(error.object[max(0, error.start - 20) : error.start + 1])
                raise InputError(f"data.source {config.source!r}: unpaired surrogate at the end of {where}") from None
            for part in _encoded(document):
                whole.update(part)
            count += 1
        if count == before:  # other than a source that has no such split, so that it takes none of that one's entries
            whole.update(f"no {split} ".encode())
    return Content(whole.hexdigest(), count, empty)


def digest(document: Document) -> bytes:
    """The SHA-256 of one document."""
    found = sha256()
    for part in _encoded(document):
        found.update(part)
    return found.digest()


def _encoded(document):
    return (part.encode() for part in parts(document))
