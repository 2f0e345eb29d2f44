"""Samples text from a run, a checkpoint or a Hugging Face folder: python generate.py FOLDER --prompt TEXT"""

import sys
from argparse import ArgumentTypeError
from pathlib import Path

from base import ArgumentParser, InputError, input_errors_end_the_program
from model.threads import share_the_cores


def read_prompt(argument: str) -> str:
    """The text of --prompt, or for "-" that of stdin. InputError: not UTF-8."""
    try:
        if argument == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        argument.encode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--prompt -: stdin is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError as error:
        raise InputError(f"--prompt: not UTF-8 at character {error.start}") from None
    return argument


def number(kind: type, allowed: str, is_allowed):
    """An argparse type: a number of that kind for which is_allowed holds; `allowed` says so in words."""

    def convert(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_allowed(value):
            raise ArgumentTypeError(f"{text!r} is not {allowed}")
        return value

    return convert


def scaling(text: str) -> dict:
    """An argparse type: METHOD:FACTOR."""
    method, _, factor = text.partition(":")
    try:
        return {"rope_type": method, "factor": float(factor)}
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not METHOD:FACTOR, such as yarn:4") from None


def main() -> None:
    positive = number(int, "a whole number of 1 or more", lambda n: n >= 1)
    parser = ArgumentParser(description="Sample text from a run, a checkpoint or a Hugging Face folder.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--prompt", default="", metavar="TEXT", help="what the text continues; -: that on stdin; empty: a new document"
    )
    parser.add_argument("--max-new-tokens", type=positive, default=256, metavar="N", help="default 256")
    parser.add_argument(
        "--temperature",
        type=number(float, "a number of 0 or more", lambda t: 0 <= t < float("inf")),
        default=0.8,
        metavar="T",
        help="0 takes the likeliest token each time; default 0.8",
    )
    parser.add_argument("--top-k", type=positive, metavar="K", help="sample among the K likeliest tokens")
    parser.add_argument(
        "--top-p",
        type=number(float, "in (0, 1]", lambda p: 0 < p <= 1),
        metavar="P",
        help="sample among the fewest tokens that have the probability P together",
    )
    parser.add_argument(
        "--seed",
        type=number(int, "a whole number of 0 or more", lambda n: 0 <= n < 2**63),
        default=0,
        metavar="S",
        help="the same seed gives the same text; default 0",
    )
    parser.add_argument("--num-samples", type=positive, default=1, metavar="N", help="default 1")
    parser.add_argument(
        "--rope-scaling",
        type=scaling,
        metavar="METHOD:FACTOR",
        help="reach FACTOR times the trained length by linear, ntk, yarn or llama3 scaling of a model with rope",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the weights while tokens are made; bfloat16 reads half the memory; default float32",
    )
    parser.add_argument("--stats", action="store_true", help="print tokens/s to stderr")
    with input_errors_end_the_program():
        args = vars(parser.parse_args())
        prompt = read_prompt(args.pop("prompt"))
        from sampling import print_samples  # and torch, which takes a second: --help answers before it

        sys.stdout.reconfigure(encoding="utf-8")
        print_samples(args.pop("folder"), prompt, **args)


if __name__ == "__main__":
    share_the_cores()
    main()
