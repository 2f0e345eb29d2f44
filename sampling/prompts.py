"""Prompts from the command line, a file or stdin."""

import json
import sys
from pathlib import Path

from base import InputError


def read_prompt(argument: str) -> str:
    """The text of --prompt, or of stdin for "-". InputError: not UTF-8."""
    return _decoded("--prompt -: stdin", sys.stdin.buffer.read()) if argument == "-" else _checked("--prompt", argument)


def read_line() -> str | None:
    """The next line of stdin, without its end; None: there is none. A terminal is shown that one is awaited."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.buffer.readline()
    return _decoded("stdin", line).rstrip("\r\n") if line else None


def read_prompts(file: Path) -> list[str]:
    """Each line of a text file, or the "prompt" of each object of a .jsonl file. InputError: none, or not that."""
    try:
        lines = _decoded(str(file), file.read_bytes()).split("\n")
    except OSError as error:
        raise InputError(f"--prompts-file: {file} cannot be read: {error.strerror or error}") from None
    lines = [line.removesuffix("\r") for line in lines[: -1 if lines[-1] == "" else None]]
    if file.suffix.lower() == ".jsonl":
        lines = [_prompt(f"{file}: line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    if not lines:
        raise InputError(f"--prompts-file: {file} has no line")
    return lines


def _prompt(place, line):
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON: {error}") from None
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str):
        raise InputError(f'{place}: expected an object with a text as "prompt", got {line!r:.60}')
    return _checked(place, prompt)


def _decoded(place, content):
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is not UTF-8 at byte {error.start}") from None


def _checked(place, text):
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: not UTF-8 at character {error.start}") from None
    return text
