"""From a checkpoint and a prompt to text."""

import re
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from base import InputError
from data.documents import END_OF_TEXT
from data.tokenizer import encode, load_tokenizer
from model.checkpoint import find_checkpoint, load_checkpoint, read_json
from model.device import pick_device
from model.generation import generate

UNKNOWN = "\ufffd"  # stands for bytes that are not UTF-8
CONTEXT = 8  # tokens decoded again with those after them: a character has up to four, and the first may lose its space


def sample(folder: Path, max_new_tokens: int = 128) -> str:
    """Text of a run after an empty prompt, shorter if its scheme has fewer positions."""
    folder = find_checkpoint(folder)
    model, tokenizer = load_checkpoint(folder), load_tokenizer(folder)
    start = torch.tensor([tokenizer.token_to_id(END_OF_TEXT)])
    count = min(max_new_tokens, model.position.max_length or max_new_tokens)
    known = tokenizer.get_vocab().values()  # model.vocab_size may be larger
    return tokenizer.decode([ids.item() for ids in generate(model, start, count, temperature=0.8, token_ids=known)])


def print_samples(
    folder: Path, prompt: str, *, num_samples: int, dtype: str, stats: bool, rope_scaling: dict | None, **sampling
) -> None:
    """Prints num_samples continuations of the prompt to stdout, the first token by token.

    rope_scaling: as in the config's model.position.scaling, for a model trained without it.
    sampling: max_new_tokens, temperature, top_k, top_p and seed of `model.generation.generate`.
    """
    folder = find_checkpoint(folder)
    model = load_checkpoint(folder, position_options=rope_scaling and {"scaling": rope_scaling})
    tokenizer, vocab_size = load_tokenizer(folder), model.config.vocab_size
    prompt_ids, own_ids = encode(tokenizer, prompt), tokenizer.get_vocab(with_added_tokens=False).values()
    # Tokens added to the tokenizer may lie beyond the model; they are never drawn.
    check_ids(folder / "tokenizer.json", [*own_ids, *prompt_ids], vocab_size)
    start, stop = (named_tokens(folder, tokenizer, name, vocab_size) for name in ("bos", "eos"))
    prompt_ids = prompt_ids or start[:1]
    if not prompt_ids:
        raise InputError(f"--prompt: expected at least one token, as no file in {folder} names a start token")
    length, limit = len(prompt_ids) + sampling["max_new_tokens"], model.position.max_length
    if limit is not None and length > limit:
        raise InputError(f"--max-new-tokens: {length} tokens with the prompt, but the model has {limit} positions")
    trained = model.config.max_position_embeddings
    if length > trained * (rope_scaling["factor"] if rope_scaling else 1):
        print(f"warning: longer than the {trained} tokens of context that the model was trained on", file=sys.stderr)

    device = pick_device()
    stream, steps, clock = TextStream(tokenizer, prompt_ids), [], [time.perf_counter()]
    for ids in generate(
        model.to(device),
        torch.tensor(prompt_ids, device=device),
        num_samples=num_samples,
        stop_ids=stop,
        token_ids=[token for token in tokenizer.get_vocab().values() if token < vocab_size],
        dtype=getattr(torch, dtype),
        **sampling,
    ):
        steps.append(ids.tolist())
        clock.append(time.perf_counter())
        stream.write(steps[-1][0])
    stream.finish()
    for row in list(zip(*steps))[1:]:
        print()
        stream = TextStream(tokenizer, prompt_ids)
        for token in row:
            stream.write(token)
        stream.finish()
    if stats:
        prefill, seconds = len(prompt_ids) / (clock[1] - clock[0]), max(clock[-1] - clock[1], 1e-9)
        made = sum(token >= 0 for ids in steps[1:] for token in ids)
        print(f"prefill {prefill:,.1f} tokens/s, decode {made / seconds:,.1f} tokens/s", file=sys.stderr)


class TextStream:
    """Prints the text of token after token to stdout, as soon as no later token can change it.

    It prints what the tokens add to the prompt when all are decoded together: alone, some would lose their first space.
    An unfinished character waits for the next token. Byte tokens, such as <0xE4>, wait for a token of another kind: if
    one byte in a run of them is wrong, decoders with a byte fallback write U+FFFD for each.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int]):
        self.tokenizer = tokenizer
        self.special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        self.ids = list(prompt_ids)
        self.taken = len(tokenizer.decode(self.ids))  # characters of the text of `ids` in the prompt, printed or held
        self.held = ""  # U+FFFD that nothing follows yet; dropped at the end of the text
        self.finished = False

    def write(self, token: int) -> None:
        """Prints what this token makes readable; a negative one finishes."""
        name = self.tokenizer.id_to_token(token) if token >= 0 else self.finish()
        if name is not None and name not in self.special:
            self.ids.append(token)
            if not re.fullmatch("<0x[0-9A-Fa-f]{2}>", name):
                self._print()

    def finish(self) -> None:
        """Prints what still waits, except an unfinished character, and ends the line. Again: does nothing."""
        if not self.finished:
            self._print()
            print(flush=True)
            self.finished = True

    def _print(self):
        text = self.tokenizer.decode(self.ids)
        settled = max(self.taken, len(text) - text.endswith(UNKNOWN))
        new = text[self.taken : settled]
        self.taken = settled
        if readable := new.rstrip(UNKNOWN):
            print(self.held + readable, end="", flush=True)
            self.held = ""
        self.held += new[len(readable) :]
        if len(self.ids) > 2 * CONTEXT:
            self.ids = self.ids[-CONTEXT:]
            self.taken += len(self.tokenizer.decode(self.ids)) - len(text)


def named_tokens(folder: Path, tokenizer: Tokenizer, name: str, vocab_size: int) -> list[int]:
    """Ids of the tokens that begin ("bos") or end ("eos") a text, from every file in the folder that names any.

    InputError, naming the file: not a token, or beyond a model of vocab_size tokens.
    """

    def stored(file, key):
        return (read_json(folder / file) if (folder / file).exists() else {}).get(key)

    found, key = [], f"{name}_token_id"
    for file in ("generation_config.json", "config.json"):
        value = stored(file, key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(each) is int and each >= 0 for each in ids):
            raise InputError(f"{folder / file}: {key}: expected a token id or a list of them, got {value!r:.60}")
        check_ids(folder / file, ids, vocab_size)
        found += ids
    file, key = "tokenizer_config.json", f"{name}_token"
    value = stored(file, key)
    if value is not None:
        text = value.get("content") if isinstance(value, dict) else value
        token = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if token is None:
            raise InputError(f"{folder / file}: {key}: expected a token in tokenizer.json, got {value!r:.60}")
        check_ids(folder / file, [token], vocab_size)
        found.append(token)
    return found


def check_ids(file: Path, ids: list[int], vocab_size: int) -> None:
    """InputError if an id in the file is beyond a model of vocab_size tokens."""
    if max(ids, default=0) >= vocab_size:
        raise InputError(f"{file}: has token id {max(ids)}, but the model has only {vocab_size} tokens")
