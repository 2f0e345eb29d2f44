"""A document and its parts: a long text is a file that is read again and again, never held whole."""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from base import InputError

END_OF_TEXT = "<|endoftext|>"  # the token before each document
Document = str | Iterable[str]  # the whole text, or, if it is long, its parts, which can be iterated over repeatedly
REPLACE_HINT = "data.errors=replace reads U+FFFD there"

_PART_BYTES = 2**24  # of a text file in memory at once


def parts(document: Document) -> Iterable[str]:
    """The text of a document, in one part or several."""
    return (document,) if isinstance(document, str) else document


class TextFile:
    """A document too long to hold in memory: each iteration reads the file anew, in parts."""

    def __init__(self, path: Path, errors: str):
        self.path, self.errors = path, errors

    def __iter__(self) -> Iterator[str]:
        """The text without its byte-order mark. InputError names the file, and the first byte that is not UTF-8."""
        decoder, start = codecs.getincrementaldecoder("utf-8")(self.errors), 0
        try:
            with open_unpacked(self.path) as file:
                while True:
                    block = file.read(_PART_BYTES)
                    held = len(decoder.getstate()[0])  # bytes of a character that the previous block cut in two
                    part = decoder.decode(block, final=not block)
                    yield from filter(None, [part if start else part.removeprefix("\ufeff")])
                    start += len(block)
                    if not block:
                        return
        except UnicodeDecodeError as error:
            where = start - held + error.start
            reason = f"not UTF-8 at byte {where}: {error.reason}; {REPLACE_HINT}"
            raise InputError(f"{self.path}: {reason}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.path}: {getattr(error, 'strerror', None) or error}") from None


@dataclass(frozen=True)
class Slice:
    """The characters [start, stop) of a document, as a document."""

    document: Document
    start: int
    stop: int

    def __iter__(self) -> Iterator[str]:
        seen = 0
        for part in parts(self.document):
            yield from filter(None, [part[max(0, self.start - seen) : max(0, self.stop - seen)]])
            seen += len(part)
            if seen >= self.stop:
                return


def open_unpacked(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed if its name ends in .gz."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
