"""From prompts to samples on stdout, as text or as JSON."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from base import InputError, printable
from model.context import Context
from model.device import is_out_of_memory, pick_device
from model.generation import Step, generate
from model.linear import packs
from sampling.prompts import read_line
from sampling.source import Source
from sampling.stream import TextStream, special_tokens

BATCH_TOKENS = 2**13  # in the cache of a batch of prompts; bounds memory


def sample(folder: Path, max_new_tokens: int = 128) -> str:
    """Text of a run after an empty prompt, shorter if its scheme has fewer positions."""
    source = Source(folder)
    count = min(max_new_tokens, source.model.position.max_length or max_new_tokens)
    steps = generate(source.model, torch.tensor(source.start[:1]), count, temperature=0.8, token_ids=source.drawn)
    return source.tokenizer.decode([step.ids.item() for step in steps])


@dataclass
class Sample:
    """What follows a prompt, as it grows."""

    prompt: str
    stream: TextStream
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    shown: int = 0  # characters
    is_shown: bool = False

    def take(self, token: int, logprob: float, reason: str | None) -> None:
        """Takes in a token; reason: why it, which then is no text, ends the sample."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.text += self.stream.write(token) if reason is None else ""
        if reason or self.stream.stopped:
            self.finish(reason)

    def finish(self, reason: str | None) -> None:
        """Ends the sample for that reason, unless it has ended or what waited completes a stop text."""
        if self.finish_reason is None:
            self.text += self.stream.finish()
            self.finish_reason = "stop" if self.stream.stopped else reason

    def show(self) -> None:
        """Prints the text that is new, and ends the line once it is whole."""
        if not self.is_shown:
            self.is_shown = self.finish_reason is not None
            print(self.text[self.shown :], end="\n" if self.is_shown else "", flush=True)
            self.shown = len(self.text)

    def row(self) -> str:
        """A line of JSON."""
        keys = ("prompt", "text", "ids", "logprobs", "finish_reason")
        return json.dumps({key: getattr(self, key) for key in keys})


class Sampler:
    """Prints num_samples continuations of each prompt to stdout.

    stop: texts that end a sample, and are cut off. as_json: a line of JSON each, instead of the text.
    overflow: "error", or what a Context does past the window. others: as `generate` takes them.
    InputError: compiled, but not on a CUDA GPU, where alone a step of fixed shape is faster.
    """

    def __init__(
        self,
        source: Source,
        *,
        max_new_tokens: int,
        num_samples: int,
        stop: list[str],
        as_json: bool,
        overflow: str,
        dtype: str,
        compiled: bool,
        **others,
    ):
        self.source, self.stop, self.as_json, self.overflow = source, stop, as_json, overflow
        self.max_new_tokens, self.num_samples, self.others = max_new_tokens, num_samples, others
        self.device = pick_device()
        if compiled and self.device.type != "cuda":
            raise InputError(f"--compile: expected a CUDA GPU, got {self.device.type}")
        past = "continue" if overflow == "error" else overflow
        self.context = Context(source.model.to(self.device), getattr(torch, dtype), source.window, past, compiled)
        # A special token has no text that could be found: its name stands for it.
        named = {source.tokenizer.token_to_id(text) for text in special_tokens(source.tokenizer) & {*stop}}
        self.stop_ids = {*source.stop, *named & {*source.drawn}}
        self.warned, self.headed = False, 0
        self.read = self.made = self.reading = self.making = 0  # tokens, and seconds

    def print_all(self, prompts: list[str]) -> None:
        """Prints the samples of all prompts, in their order. InputError, and nothing is printed: one cannot be used."""
        ready = []
        for number, prompt in enumerate(prompts, 1):
            try:
                ready.append((prompt, self.ids(prompt)))
            except InputError as error:
                raise InputError(f"prompt {number}: {error}" if len(prompts) > 1 else str(error)) from None
        for batch in self.batches(ready):
            self.print(batch)

    def print_answers(self) -> None:
        """Prints the samples of line after line from stdin, until its end or Ctrl-C; in a chat each goes on from the last."""
        messages = []
        with suppress(KeyboardInterrupt):
            while True:
                try:
                    if (prompt := read_line()) is None:
                        return
                    self.headed = 0
                    answer = self.print([(prompt, self.ids(prompt, messages))])[0].text
                    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
                except InputError as error:
                    print("error:", printable(str(error)), file=sys.stderr)

    def ids(self, prompt: str, earlier: list[dict[str, str]] = ()) -> list[int]:
        """As `Source.ids`. InputError: its samples could pass the window, or all positions, where they must not."""
        ids = self.source.ids(prompt, earlier)
        length, limit = len(ids) + self.max_new_tokens, self.source.model.position.max_length
        if self.overflow == "error" and length > (window := self.source.window):
            raise InputError(f"--overflow error: {length} tokens with the prompt, but the window is {window}")
        if self.overflow == "continue" and limit is not None and length > limit:
            raise InputError(
                f"--max-new-tokens: {length} tokens with the prompt, but the model has {limit} positions; "
                "--overflow window goes on past them"
            )
        return ids

    def batches(self, prompts: list[tuple[str, list[int]]]) -> Iterator[list[tuple[str, list[int]]]]:
        """The prompts in groups that are read together."""
        batch, mixed = [], self.context.overflow == "continue"
        for prompt in prompts:
            lengths = {len(ids) for _, ids in [*batch, prompt]}
            size = (max(lengths) + self.max_new_tokens) * (len(batch) + 1) * self.num_samples
            if batch and (size > BATCH_TOKENS or len(lengths) > 1 and not mixed):
                yield batch
                batch = []
            batch.append(prompt)
        yield batch

    def print(self, prompts: list[tuple[str, list[int]]]) -> list[Sample]:
        """Prints the samples of a batch of prompts and their tokens, the first one's text token by token."""
        tokenizer, longest = self.source.tokenizer, max(len(ids) for _, ids in prompts) + self.max_new_tokens
        if self.overflow == "continue" and longest > self.source.window and not self.warned:
            trained, self.warned = self.source.trained, True
            print(
                f"warning: longer than the {trained} tokens of context that the model was trained on", file=sys.stderr
            )
        samples = [
            Sample(text, TextStream(tokenizer, ids, self.stop))
            for text, ids in prompts
            for _ in range(self.num_samples)
        ]
        if self.context.decoding is self.context.model and packs(self.device, torch.float32, len(samples)):
            self.context.model.pack()
        if self.headed and not self.as_json:
            print()
        self.head(samples)
        for _ in self.grown(samples, prompts):
            if not self.as_json:
                samples[0].show()
        for number, sample in enumerate(samples):
            sample.finish("length")
            if self.as_json:
                print(sample.row(), flush=True)
            else:
                print(end="\n" if number else "")
                if number:
                    self.head(samples)
                sample.show()
        return samples

    def head(self, samples: list[Sample]) -> None:
        """Numbers the next of several samples, where somebody reads them on a terminal."""
        self.headed += 1
        if len(samples) > 1 and not self.as_json and sys.stderr.isatty():
            print(f"--- sample {self.headed}", file=sys.stderr, flush=True)

    def grown(self, samples: list[Sample], prompts: list[tuple[str, list[int]]]) -> Iterator[None]:
        """Yields whenever the samples have grown by a token, until all have ended."""
        clock = [time.perf_counter()]
        for step in self.steps([torch.tensor(ids, device=self.device) for _, ids in prompts]):
            clock.append(time.perf_counter())
            for sample, token, logprob in zip(samples, step.ids.tolist(), step.logprobs.tolist()):
                if sample.finish_reason is None:
                    is_end = token in self.stop_ids
                    sample.take(token, logprob, ("eos" if token in self.source.stop else "stop") if is_end else None)
            yield
            if all(sample.finish_reason for sample in samples):
                break
        self.read += sum(len(ids) for _, ids in prompts) - self.context.known
        self.made += sum(len(sample.ids) - 1 for sample in samples)
        self.reading += clock[1] - clock[0]
        self.making += clock[-1] - clock[1]

    def steps(self, prompts: list[torch.Tensor]) -> Iterator[Step]:
        """As `generate`. InputError: the device has no memory for so many samples at once."""
        same = {"num_samples": self.num_samples, "stop_ids": self.stop_ids, "token_ids": self.source.drawn}
        try:
            yield from generate(self.context, prompts, self.max_new_tokens, **same, **self.others)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            rows = len(prompts) * self.num_samples
            said = "fewer --num-samples, fewer --max-new-tokens or a shorter prompt need less"
            raise InputError(f"{self.device}: out of memory with {rows:,} samples at once; {said}") from None

    def speeds(self) -> str:
        """Tokens read and made per second; the first of each sample comes from reading."""
        rates = self.read / max(self.reading, 1e-9), self.made / max(self.making, 1e-9)
        return "prefill {:,.1f} tokens/s, decode {:,.1f} tokens/s".format(*rates)
