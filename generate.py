"""Samples text from a run, a checkpoint or a Hugging Face folder: python generate.py FOLDER --prompt TEXT"""

import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from base import ArgumentParser, InputError, input_errors_end_the_program
from model.threads import share_the_cores


def number(kind: type, allowed: str, is_allowed):
    """An argparse type: a number of that kind for which is_allowed holds; `allowed` says so in words."""

    def convert(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_allowed(value):
            raise ArgumentTypeError(f"expected {allowed}, got {text!r}")
        return value

    return convert


def rope_scaling(text: str) -> dict:
    """An argparse type: METHOD:FACTOR."""
    method, _, factor = text.partition(":")
    try:
        return {"rope_type": method, "factor": float(factor)}
    except ValueError:
        raise ArgumentTypeError(f"expected METHOD:FACTOR, such as yarn:4, got {text!r}") from None


def parse_arguments() -> Namespace:
    count = number(int, "a whole number of 1 or more", lambda n: n >= 1)
    temperature = number(float, "a number of 0 or more", lambda t: 0 <= t < float("inf"))
    probability = number(float, "a number in (0, 1]", lambda p: 0 < p <= 1)
    seed = number(int, "a whole number of 0 or more, below 2^63", lambda n: 0 <= n < 2**63)
    parser = ArgumentParser(description="Sample text from a run, a checkpoint or a Hugging Face folder.")
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER")
    prompt_help = "the text to continue; -: read it from stdin; empty: a new document"
    add("--prompt", default="", metavar="TEXT", help=prompt_help)
    add("--max-new-tokens", type=count, default=256, metavar="N", help="default 256")
    add("--temperature", type=temperature, default=0.8, metavar="T", help="0 takes the likeliest token; default 0.8")
    add("--top-k", type=count, metavar="K", help="sample among the K likeliest tokens")
    add("--top-p", type=probability, metavar="P", help="sample among the fewest tokens whose probabilities reach P")
    add("--seed", type=seed, default=0, metavar="S", help="the same seed gives the same text; default 0")
    add("--num-samples", type=count, default=1, metavar="N", help="default 1")
    scaling_help = "reach FACTOR times the trained length by linear, ntk, yarn or llama3 scaling of a model with rope"
    add("--rope-scaling", type=rope_scaling, metavar="METHOD:FACTOR", help=scaling_help)
    dtype_help = "of the weights while decoding; bfloat16 reads half the memory; default float32"
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=dtype_help)
    add("--stats", action="store_true", help="print tokens/s to stderr")
    return parser.parse_args()


def read_prompt(argument: str) -> str:
    """The text of --prompt, or of stdin for "-". InputError: not UTF-8."""
    try:
        if argument == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        argument.encode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--prompt -: stdin is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError as error:
        raise InputError(f"--prompt: not UTF-8 at character {error.start}") from None
    return argument


def main() -> None:
    with input_errors_end_the_program():
        args = vars(parse_arguments())
        prompt = read_prompt(args.pop("prompt"))
        from sampling import print_samples  # and torch, which takes a second; --help is answered without it

        sys.stdout.reconfigure(encoding="utf-8")
        print_samples(args.pop("folder"), prompt, **args)


if __name__ == "__main__":
    share_the_cores()
    main()
