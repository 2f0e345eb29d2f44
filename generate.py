"""Samples text from a run, a checkpoint or a Hugging Face Llama folder: python generate.py FOLDER --prompt TEXT"""

import sys
import time
from argparse import ArgumentTypeError
from pathlib import Path

from base import ArgumentParser, InputError, input_errors_end_the_program
from model.threads import share_the_cores

# torch takes a second to import: the functions that need it import it, so that --help answers at once.


class TextStream:
    """Prints the text of token after token to stdout, never half a character.

    The text is what the tokens add to the prompt: decoded alone, some tokenizers drop their first space.
    """

    def __init__(self, tokenizer, prompt_ids: list[int]):
        from tokenizers.decoders import DecodeStream

        self.tokenizer, self.prompt_ids, self.ids, self.printed = tokenizer, prompt_ids, [], 0
        self.stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)

    def write(self, token: int) -> None:
        """Prints what becomes readable with this token."""
        self.ids.append(token)
        self._print(self.stream.step(self.tokenizer, token) or "")

    def finish(self) -> None:
        """Prints what the stream still holds back, but for an unfinished character, and ends the line."""
        text = self.tokenizer.decode(self.prompt_ids + self.ids)[len(self.tokenizer.decode(self.prompt_ids)) :]
        self._print(text[self.printed :].rstrip("\ufffd") + "\n")

    def _print(self, text: str) -> None:
        self.printed += len(text)
        print(text, end="", flush=True)


def generate_text(
    folder: Path, prompt: str, *, num_samples: int, dtype: str, stats: bool, rope_scaling: dict | None, **sampling
) -> None:
    """Writes num_samples continuations of the prompt to stdout, the first as it is made.

    rope_scaling: as in the config's model.position.scaling, for a model trained without it.
    sampling: max_new_tokens, temperature, top_k, top_p and seed of `model.generation.generate`.
    """
    import torch

    from data.tokenizer import encode, load_tokenizer
    from model.checkpoint import find_checkpoint, load_checkpoint, read_json
    from model.device import pick_device
    from model.generation import generate

    folder = find_checkpoint(folder)
    model = load_checkpoint(folder, position_options=rope_scaling and {"scaling": rope_scaling})
    tokenizer, stored = load_tokenizer(folder), read_json(folder / "config.json")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"--prompt: not UTF-8 at character {error.start}") from None
    start, stop = (named_tokens(stored, key) for key in ("bos_token_id", "eos_token_id"))
    prompt_ids = encode(tokenizer, prompt) or start[:1]
    if not prompt_ids:
        raise InputError("--prompt: is empty, and the tokenizer has no start token to begin with instead")
    for file, ids in (("config.json", start + stop), ("tokenizer.json", prompt_ids)):
        if max(ids, default=0) >= model.config.vocab_size:
            size = model.config.vocab_size
            raise InputError(f"{folder / file}: has a token {max(ids)}, but the model {size} tokens")
    length, limit = len(prompt_ids) + sampling["max_new_tokens"], model.position.max_length
    if limit is not None and length > limit:
        raise InputError(f"--max-new-tokens: {length} tokens with the prompt, but the model has {limit} positions")
    trained = model.config.max_position_embeddings
    if length > trained * (rope_scaling["factor"] if rope_scaling else 1):
        print(f"warning: goes on past the {trained} tokens of context that the model was trained on", file=sys.stderr)

    device = pick_device()
    steps = generate(
        model.to(device),
        torch.tensor(prompt_ids, device=device),
        num_samples=num_samples,
        stop_ids=tuple(stop),
        vocab_size=tokenizer.get_vocab_size(),
        dtype=getattr(torch, dtype),
        **sampling,
    )
    streams = [TextStream(tokenizer, prompt_ids) for _ in range(num_samples)]
    rows, clock = [], [time.perf_counter()]
    for ids in steps:
        rows.append(ids.tolist())
        clock.append(time.perf_counter())
        streams[0].write(rows[-1][0])
    streams[0].finish()
    for stream, tokens in list(zip(streams, zip(*rows)))[1:]:
        print()
        for token in tokens:
            stream.write(token)
        stream.finish()
    if stats:
        prefill, decode = clock[1] - clock[0], max(clock[-1] - clock[1], 1e-9)
        print(
            f"prefill {len(prompt_ids) / prefill:,.1f} tokens/s, "
            f"decode {num_samples * (len(rows) - 1) / decode:,.1f} tokens/s",
            file=sys.stderr,
        )


def named_tokens(stored: dict, key: str) -> list[int]:
    """The ids under a key of config.json: one, a list of them, or null."""
    value = stored.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(each, int) and each >= 0 for each in ids):
        raise InputError(f"config.json: {key} is {value!r:.60}, not a token's id")
    return ids


def read_prompt(argument: str) -> str:
    """The text of --prompt, or for "-" that of stdin."""
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--prompt -: stdin is not UTF-8 at byte {error.start}") from None


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
    parser = ArgumentParser(description="Sample text from a run, a checkpoint or a Hugging Face Llama folder.")
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
        sys.stdout.reconfigure(encoding="utf-8")
        generate_text(args.pop("folder"), read_prompt(args.pop("prompt")), **args)


if __name__ == "__main__":
    share_the_cores()
    main()
