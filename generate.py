"""Samples text from a run, a checkpoint or a Hugging Face folder: python generate.py FOLDER --prompt TEXT"""

import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from base import ArgumentParser, InputError, input_errors_end_the_program, lasting_imports
from model.threads import share_the_cores
from sampling.prompts import read_prompt, read_prompts

SCALINGS = ("linear", "ntk", "yarn", "llama3")  # that need a factor alone


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
        if method not in SCALINGS:
            raise ValueError
        return {"rope_type": method, "factor": float(factor)}
    except ValueError:
        known = ", ".join(SCALINGS)
        raise ArgumentTypeError(f"expected METHOD:FACTOR, such as yarn:4, with {known}, got {text!r}") from None


def text(argument: str) -> str:
    """An argparse type: a text that is not empty."""
    if not argument:
        raise ArgumentTypeError("expected a text, got ''")
    return argument


def parse_arguments() -> Namespace:
    count = number(int, "a whole number of 1 or more", lambda n: n >= 1)
    top_k = number(int, "a whole number of 0 or more", lambda n: n >= 0)
    temperature = number(float, "a number of 0 or more", lambda t: 0 <= t < float("inf"))
    # within these no logit overflows float32
    penalty = number(float, "a number from 1e-30 to 1e30", lambda p: 1e-30 <= p <= 1e30)
    top_p = number(float, "a number in (0, 1]", lambda p: 0 < p <= 1)
    min_p = number(float, "a number in [0, 1]", lambda p: 0 <= p <= 1)
    seed = number(int, "a whole number of 0 or more, below 2^63", lambda n: 0 <= n < 2**63)
    parser = ArgumentParser(
        description="Sample text from a run, a checkpoint or a Hugging Face folder.",
        epilog="Example: python generate.py runs/quickstart --prompt 'The list' --num-samples 3. "
        "The logits pass the repetition penalty, the temperature, --top-k, --top-p and --min-p, in this order: "
        "the temperature comes before the filters, as in transformers; llama.cpp has it last.",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER")
    checkpoint_help = "of a run: the newest, or best: that of the lowest validation loss; default newest"
    add("--checkpoint", choices=("newest", "best"), default="newest", help=checkpoint_help)
    prompts = parser.add_mutually_exclusive_group()
    prompt_help = "the text to continue; -: read it from stdin; empty: a new document"
    prompts.add_argument("--prompt", default="", metavar="TEXT", help=prompt_help)
    file_help = 'a prompt in each line, or in a .jsonl file as "prompt" of each object; read in batches'
    prompts.add_argument("--prompts-file", type=Path, metavar="FILE", help=file_help)
    interactive_help = "read a prompt from each line of stdin and answer it; Ctrl-C ends"
    prompts.add_argument("--interactive", action="store_true", help=interactive_help)
    chat_help = (
        "a prompt is a message to an instruct model, in the folder's chat template; --interactive: a conversation"
    )
    add("--chat", action="store_true", help=chat_help)
    add("--max-new-tokens", type=count, default=256, metavar="N", help="default 256")
    stop_help = "end before this text; may be given several times"
    add("--stop", type=text, action="append", default=[], metavar="TEXT", help=stop_help)
    penalty_help = "divide positive logits of tokens there have been by P, multiply negative ones; default 1: off"
    add("--repetition-penalty", type=penalty, default=1.0, metavar="P", help=penalty_help)
    spared_help = "the repetition penalty counts new tokens only, not the prompt's"
    add("--spare-prompt", dest="penalize_prompt", action="store_false", help=spared_help)
    add("--temperature", type=temperature, default=0.8, metavar="T", help="0 takes the likeliest token; default 0.8")
    add("--top-k", type=top_k, default=0, metavar="K", help="sample among the K likeliest tokens; default 0: off")
    top_p_help = "sample among the fewest tokens whose probabilities reach P; default 1: off"
    add("--top-p", type=top_p, default=1.0, metavar="P", help=top_p_help)
    min_p_help = "sample among tokens at least P times as likely as the likeliest; default 0: off"
    add("--min-p", type=min_p, default=0.0, metavar="P", help=min_p_help)
    add("--seed", type=seed, default=0, metavar="S", help="the same seed gives the same text; default 0")
    add("--num-samples", type=count, default=1, metavar="N", help="of each prompt; default 1")
    overflow_help = (
        "past the trained context: error; window: read its last N tokens again for each new one; roll: forget the "
        "oldest but the first four; continue: go on at positions not trained, with a warning; default continue"
    )
    add("--overflow", choices=("error", "window", "roll", "continue"), default="continue", help=overflow_help)
    json_help = "print a line of JSON for each sample: prompt, text, ids, logprobs (of the model alone), finish_reason"
    add("--json", dest="as_json", action="store_true", help=json_help)
    scaling_help = "reach FACTOR times the trained length by linear, ntk, yarn or llama3 scaling of a model with rope"
    add("--rope-scaling", type=rope_scaling, metavar="METHOD:FACTOR", help=scaling_help)
    dtype_help = "of the weights while decoding; bfloat16 reads half the memory; default float32"
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=dtype_help)
    compile_help = "on a CUDA GPU: decode in compiled steps, CUDA graphs; the first wait for the compiler"
    add("--compile", dest="compiled", action="store_true", help=compile_help)
    add("--stats", action="store_true", help="print tokens/s to stderr")
    return parser.parse_args()


def main() -> None:
    with input_errors_end_the_program():
        args = vars(parse_arguments())
        prompt, file, interactive, stats = (args.pop(key) for key in ("prompt", "prompts_file", "interactive", "stats"))
        prompts = read_prompts(file) if file else [] if interactive else [read_prompt(prompt)]
        with lasting_imports():
            from model.checkpoint import best_checkpoint
            from sampling.samples import Sampler  # and torch, which takes a second; --help is answered without it
            from sampling.source import Source

        sys.stdout.reconfigure(encoding="utf-8")
        if args.pop("checkpoint") == "best":
            args["folder"] = best_checkpoint(folder := args["folder"])
            if args["folder"] is None:
                raise InputError(f"--checkpoint best: {folder} has no checkpoint of a step that was evaluated")
        sampler = Sampler(Source(*(args.pop(key) for key in ("folder", "rope_scaling", "chat"))), **args)
        sampler.print_answers() if interactive else sampler.print_all(prompts)
        if stats:
            print(sampler.speeds(), file=sys.stderr)


if __name__ == "__main__":
    share_the_cores()
    main()
