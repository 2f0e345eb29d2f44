"""Text that every machine has: the documentation and the source of Python's standard library."""

import ast
import inspect
import json
import os
import sysconfig
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from base import InputError, expanded, replace_text, writing
from data.config import DataConfig

_NOT_THE_LIBRARY = {"test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__"}


def python_docs(config: DataConfig) -> Iterator[str]:
    """The language reference's topics and the library's docstrings of 60 characters or more, each text once."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        raise InputError("data.source 'python_docs': this installation of Python lacks pydoc_data") from None
    sources = [path.read_bytes() for path in _library_files()]
    # Parsing the whole library takes seconds, so its docstrings are cached under the hash of what they came from.
    cached = expanded(config.cache_dir) / f"docstrings-{sha256(b''.join(sources)).hexdigest()[:20]}.json"
    try:
        docstrings = json.loads(cached.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing or damaged
        with writing(f"data.cache_dir {config.cache_dir!r}"):
            cached.parent.mkdir(parents=True, exist_ok=True)
            docstrings = _docstrings(sources)
            replace_text(cached, json.dumps(docstrings), str(os.getpid()))
    yield from dict.fromkeys([*(topics[name] for name in sorted(topics)), *docstrings])


def python_source() -> Iterator[str]:
    """The library's modules, one document each."""
    for path in _library_files():
        try:
            yield from filter(None, [path.read_bytes().decode("utf-8")])
        except UnicodeDecodeError:  # the library has test material in other encodings
            pass


def _library_files():
    """The library's own modules, sorted by path."""
    paths = []
    for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = set(folders) - _NOT_THE_LIBRARY
        paths += [Path(folder, file) for file in files if file.endswith(".py")]
    return sorted(paths)


def _docstrings(sources):
    found = {}
    for source in sources:
        try:
            nodes = ast.walk(ast.parse(source))
        except SyntaxError:  # the library has files that are wrong on purpose
            continue
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[inspect.cleandoc(ast.get_docstring(node, clean=False) or "")] = None
    return [docstring for docstring in found if len(docstring) >= 60]
