"""Strict YAML: refuses what PyYAML would read differently than its writer meant, and what grows without bound."""

import re
from itertools import chain
from pathlib import Path

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from base import InputError

_MAX_BYTES = 1_000_000  # of a YAML file, and
_MAX_VALUES = 10_000  # values in it with its aliases expanded: far more than any config has
_NOT_JSON = ("tag:yaml.org,2002:binary", "tag:yaml.org,2002:set")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def read_yaml(path: str | Path) -> dict:
    """The mapping in a YAML file. InputError if there is none, a key is given twice, or it grows without bound."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise InputError(f"{path}: expected at most {_MAX_BYTES:,} bytes, got more")
        content = _parse_yaml(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of keys, got {type(content).__name__}")
    return content


def parse_override(text: str) -> tuple[str, object]:
    """The dotted key and the value of `dotted.key=value`; the value is YAML and may contain more equals signs."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"{text!r}: expected an override of the form dotted.key=value")
    try:
        node = yaml.compose(value, yaml.SafeLoader)
        if node and value[node.end_mark.index :].strip():
            raise yaml.YAMLError("a comment begins after ' #'")
        return key, _parse_yaml(value)
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(getattr(error, "problem", error)).split())
        hint = f"; write a text as {key}='\"…\"'" if {"*", "#"} & {*value} else ""
        raise InputError(f"{text!r:.80}: the value is not YAML: {problem}{hint}") from None


def set_dotted(values: dict, key: str, value) -> None:
    """Sets `a.b.c` in nested mappings, creating those that are missing. InputError where a.b is something else."""
    *parents, last = key.split(".")
    for parent in parents:
        inner = values.get(parent)
        if parent == "position" and isinstance(inner, str):  # short for a mapping
            inner = {"scheme": inner}
        if not isinstance(inner, dict | None):
            raise InputError(f"{key}: expected {parent} to be a mapping, got {inner!r:.60}")
        values[parent] = inner = dict(inner or {})
        values = inner
    values[last] = value


def _parse_yaml(text):
    try:
        if (node := yaml.compose(text, yaml.SafeLoader)) is None:
            return None
        _check(node)
        return SafeConstructor().construct_document(node)
    except (LookupError, AttributeError, ValueError) as error:  # PyYAML's own, for !!bool maybe or 2024-13-01
        raise yaml.YAMLError("a value does not match its type") from error


def _check(root):
    nodes = [root]
    for node in nodes:  # which grows on the way, without end where a node contains itself
        if node.tag in _NOT_JSON:  # in which a comparison hands values on
            raise ConstructorError(None, None, f"expected no {node.tag.split(':')[-1]}", node.start_mark)
        if len(nodes) > _MAX_VALUES:
            raise yaml.YAMLError(f"expected at most {_MAX_VALUES:,} values with aliases expanded, got more")
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node)
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        else:
            _check_keys([key for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            nodes += chain(*node.value)


def _check_scalar(node):
    """Refuses text that no file name can hold, and 010 and 1:30, which YAML 1.1 reads as 8 and 90."""
    if re.search("[\0\ud800-\udfff]", node.value):
        raise ConstructorError(None, None, f"{node.value!r:.60} has a character that is not allowed", node.start_mark)
    if node.tag in _NUMBERS and re.match(r"[-+]?0[0-9_]+$|.*:", node.value):
        base = "base 60" if ":" in node.value else "octal"
        problem = f"{node.value:.60} is {base} in YAML; write a decimal without leading zeros, or quote it as text"
        raise ConstructorError(None, None, problem, node.start_mark)


def _check_keys(keys):
    """Refuses a key given twice in one mapping, of which PyYAML takes the last."""
    seen = set()
    for key in keys:
        if (key.tag, key.value) in seen:
            raise ConstructorError(None, None, f"key {key.value[:60]!r} is given twice", key.start_mark)
        seen.add((key.tag, key.value))
