"""What every module may import: the error for bad input, how the programs report it, and where checkpoints are."""

import argparse
import gc
import json
import os
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO

MAX_JSON = 2**26  # bytes


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one line that names the key or file, the value, and what is allowed.
    """


class ArgumentParser(argparse.ArgumentParser):
    """Reports a wrong command line like any other bad input, in one line."""

    def error(self, message: str):
        raise InputError(f"{message} (see {self.prog} --help)")


class _Stream:
    """stdout or stderr, which has nothing written any more once it could not be written.

    A stderr that fails, for its reader has stopped or its disk is full, ends nothing: no work is to be lost for want
    of someone who watches it. A stdout that fails ends the program: quietly where its reader has stopped, which has
    had enough, otherwise with one line and exit status 2.
    """

    def __init__(self, stream, is_stdout):
        self._stream, self._is_stdout = stream, is_stdout

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        return self._try(self._stream.write, text)

    def flush(self):
        self._try(self._stream.flush)

    def _try(self, act, *given):
        try:
            return act(*given)
        except OSError as error:
            # not closed: what is in its buffer is flushed at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not self._is_stdout:
                return None
            if isinstance(error, BrokenPipeError):
                raise SystemExit(0) from None
            print("error: stdout: cannot be written:", error.strerror, file=sys.stderr)
            raise SystemExit(2) from None


@contextmanager
def input_errors_end_the_program():
    """Turns an InputError into one line on stderr and exit status 2; any other error is a defect.

    Inside it the work goes on when stderr can no longer be written, and ends when stdout cannot.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # the program was started with it closed
            setattr(sys, name, open(os.devnull, mode, errors="backslashreplace"))
    with redirect_stdout(_Stream(sys.stdout, True)), redirect_stderr(_Stream(sys.stderr, False)):
        try:
            yield
            sys.stdout.flush()
        except InputError as error:
            print("error:", printable(str(error)), file=sys.stderr)
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise SystemExit(130) from None


@contextmanager
def lasting_imports():
    """Leaves all that there is after the imports inside it out of garbage collection, for the life of the program.

    The collector would look through it again and again as it grows, and once more at the end: a third of the time that
    PyTorch takes to come and go.
    """
    before = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:  # whoever calls a program's main() again would keep the garbage of the last call
            gc.freeze()
        gc.enable()


def printable(text: str) -> str:
    """Untrusted text as one line without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


def flush(stream: IO) -> None:
    """Returns when what was written to a stream is on the disk."""
    stream.flush()
    os.fsync(stream.fileno())


@contextmanager
def writing(place):
    """Turns the OSError of a full disk or a read-only folder into an InputError that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from None


def replace_text(file: Path, text: str, end: str = "partial") -> None:
    """Writes a file atomically: a kill, or a loss of power, leaves the old one or the new one.

    end: of the name under which it is written first, another for each of several processes that may write the same.
    """
    beside = file.with_name(f".{file.name}.{end}")
    try:
        with beside.open("w", encoding="utf-8") as stream:
            stream.write(text)
            flush(stream)
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def reading():
    """Turns the OSError of a folder that may not be entered, or of too long a name, into an InputError that names it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # not of a path
            raise
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None


def expanded(path: str) -> Path:
    """The path, with a home folder in place of ~ or ~user. InputError: that folder is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: expected a user with a home folder after ~, or a whole path") from None


@reading()
def find_checkpoint(folder: Path) -> Path:
    """The checkpoint that a folder means: itself, or the newest in it, of a run of ours or of `transformers`' Trainer.

    InputError if there is none.
    """
    if (folder / "config.json").is_file():
        return folder
    complete = complete_checkpoints(folder) or _numbered(folder, "checkpoint-")
    if not complete:
        raise InputError(
            f"{folder}: expected a run folder with a checkpoint, or a checkpoint folder with a config.json"
        )
    return complete[max(complete)]


@reading()
def complete_checkpoints(run: Path) -> dict[int, Path]:
    """The complete checkpoints of a run folder, by step."""
    return _numbered(run / "checkpoints", "step_")


def _numbered(folder, prefix):
    names = os.listdir(folder) if folder.is_dir() else []  # a glob would find nothing where it may not look
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    found = {int(number): folder / f"{prefix}{number}" for number in numbers if number.isdecimal()}
    return {number: path for number, path in found.items() if (path / "config.json").is_file()}


def read_optional_json(file: Path) -> dict:
    """As `read_json`; {} where there is no such file."""
    return read_json(file) if file.exists() else {}


def read_json(file: Path) -> dict:
    """The mapping in a JSON file; InputError names the file otherwise."""
    try:
        if file.exists() and not (file.is_file() and file.stat().st_size <= MAX_JSON):
            raise ValueError(f"expected a file of at most {MAX_JSON:,} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: missing, cut short or not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: expected a mapping, got {type(content).__name__}")
    return content
