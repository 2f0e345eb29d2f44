"""What every module may import: the error for bad input, and how the programs report it."""

import argparse
import os
import sys
from contextlib import contextmanager


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one line that names the key or file, the value, and what is allowed.
    """


class ArgumentParser(argparse.ArgumentParser):
    """Reports a wrong command line like any other bad input, in one line."""

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
    except BrokenPipeError:  # whoever read stdout has stopped; keeps the rest from being flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def printable(text: str) -> str:
    """Untrusted text as one line without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


@contextmanager
def writing(place):
    """Turns the OSError of a full disk or a read-only folder into an InputError that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from None
