"""What every layer may import: the error for bad input, and the base of all config classes."""

import argparse
import os
import sys
from contextlib import contextmanager
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one line that names the key or file, the value and what is allowed.
    """


class ArgumentParser(argparse.ArgumentParser):
    """Reports a wrong command line as any other bad input, in one line."""

    def error(self, message: str):
        raise InputError(f"{message} (see {self.prog} --help)")


@contextmanager
def input_errors_end_the_program():
    """Turns an InputError into one line on stderr and exit status 2; any other error is a defect."""
    try:
        yield
    except InputError as error:
        print("error:", printable(str(error)), file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of stdout has seen enough; what is left must not be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def printable(text: str) -> str:
    """A stranger's text, or what quotes it, as one line in which nothing can steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


@contextmanager
def writing(place):
    """Turns what a full disk or a forbidden folder raises into an InputError that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from None


def share_the_cores() -> None:
    """To be called before torch is imported: OpenMP's threads sleep while they wait for each other.

    By default they spin, and one other busy program on the machine makes training ten times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class FrozenConfig(BaseModel):
    """Immutable settings: unknown keys are refused, numbers coerced, docstrings describe the fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, values):
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                near = get_close_matches(str(key), cls.model_fields, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(cls.model_fields)}"
                raise ValueError(f"unknown key {key!r:.60}, {hint}")
        return values


def one_line(error: ValidationError) -> str:
    """The first problem of a config as `dotted.key: value: what is allowed`."""
    keys = []
    while True:
        problem = error.errors()[0]
        keys += map(str, problem["loc"])
        error = problem.get("ctx", {}).get("error")
        if not isinstance(error, ValidationError):  # else: the problem of a mapping nested in this one
            break
    value = problem["input"]
    shown = "" if isinstance(value, (dict, BaseModel)) else f"{value!r:.80}: "
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{'.'.join(keys)}: {shown}{message}" if keys else message
