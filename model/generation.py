"""Sampling: from logits to probabilities to tokens."""

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from base import InputError
from model.context import Context
from model.transformer import Transformer


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits (…, V), divided by the penalty where positive and multiplied where negative, of tokens seen (…, V; bool).

    Keskar et al. 2019, section 4.1, who divide both: then a penalty above 1 makes negative ones likelier.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def probabilities(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """(…, V) probabilities of logits (…, V) after temperature, top-k (Fan et al. 2018), top-p and min-p, in this order.

    top_k 0: all. top_p keeps the fewest tokens, the likeliest first, that reach that probability (Holtzman et al.
    2020); min_p those at least min_p times as likely as the likeliest (Nguyen et al. 2024).
    """
    # In float32, since Apple GPUs lack float64; there a temperature or a top_p below 1e-45 is 0, and one above 1e39 is
    # inf, by which a barred token's -inf divided is nan. The largest logit is subtracted first: it stays 0 however small
    # the temperature, and the others become -inf at worst.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).float() / min(max(temperature, 1e-30), 1e30)
    if 0 < top_k < scaled.shape[-1]:
        best = scaled.topk(top_k, dim=-1)
        scaled = torch.full_like(scaled, float("-inf")).scatter(-1, best.indices, best.values)
    probs = scaled.softmax(dim=-1)
    if top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        kept = ordered.masked_fill(before >= max(top_p, 1e-30), 0.0)
        probs = torch.zeros_like(probs).scatter(-1, order, kept)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    if min_p > 0:
        probs = probs.masked_fill(probs < min_p * probs.amax(dim=-1, keepdim=True), 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def sample_token(
    logits: Tensor,
    generators: list[torch.Generator],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tensor:
    """(B,) token ids, each drawn independently from logits (B, V), with one generator per row.

    Temperature 0 takes the likeliest. Otherwise each token gets an exponential waiting time whose rate is its
    probability, and the first one wins: unlike inverting cumulative sums, this depends on the last bits of the logits
    only when two times nearly coincide.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    probs = probabilities(logits, temperature, top_k, top_p, min_p)
    times = torch.empty_like(probs)
    for row, generator in zip(times, generators):
        row.exponential_(generator=generator)
    return (probs / times).argmax(dim=-1)


class Step(NamedTuple):
    """What was drawn at one position."""

    ids: Tensor
    """(rows,); -1 after a row's stop token"""
    logprobs: Tensor
    """(rows,) log-probabilities of them in nats, by the model alone: at temperature 1, before penalty and filters"""


@torch.inference_mode()
def generate(
    model: Transformer | Context,
    input_ids: Tensor | list[Tensor],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    penalize_prompt: bool = True,
    num_samples: int = 1,
    seed: int = 0,
    stop_ids: Iterable[int] = (),
    token_ids: Iterable[int] | None = None,
) -> Iterator[Step]:
    """Yields what is drawn at each new position after a prompt (T,) or several, with num_samples rows for each.

    A prompt is read once for all its samples. Generation ends when all rows have ended, or after max_new_tokens.
    A row's random numbers depend only on the seed and its index among the samples of its prompt. So do its tokens,
    unless two are so close that the last bits of the logits decide, which may change with the number of rows.
    model: or the context that keeps what it has read, for the next call to go on from.
    repetition_penalty: of tokens drawn before and, if penalize_prompt, those of the prompt, before the temperature.
    stop_ids: drawing any of them ends the row.
    token_ids: the ids that may be drawn besides stop_ids, since others may only pad the output layer; None: all.
    InputError: the model's logits are not finite.
    """
    context = model if isinstance(model, Context) else Context(model)
    prompts = [input_ids] if isinstance(input_ids, Tensor) else input_ids
    device, vocab_size = prompts[0].device, context.model.config.vocab_size
    seeds = [random.Random(f"{seed} {row}").getrandbits(63) for row in range(num_samples)]
    generators = [torch.Generator(device).manual_seed(each) for _ in prompts for each in seeds]
    is_stop = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    is_stop[list(stop_ids)] = True
    barred = torch.zeros(vocab_size, device=device)
    if token_ids is not None:
        barred.fill_(float("-inf"))[list(token_ids)] = 0.0
        barred[is_stop] = 0.0
    logits = context.read(prompts, num_samples)
    seen = torch.zeros(logits.shape, dtype=torch.bool, device=device)
    if penalize_prompt:
        for rows, prompt in zip(seen.split(num_samples), prompts):
            rows[:, prompt] = True
    done = torch.zeros(len(logits), dtype=torch.bool, device=device)
    for made in range(1, max_new_tokens + 1):
        if not torch.isfinite(logits).all():
            raise InputError("the model's logits are not finite: its weights are damaged, or its training diverged")
        allowed = logits if repetition_penalty == 1 else penalized(logits, seen, repetition_penalty)
        ids = sample_token(allowed + barred, generators, temperature, top_k, top_p, min_p)
        seen.scatter_(1, ids[:, None], True)
        logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        yield Step(ids.masked_fill(done, -1), logprobs.gather(1, ids[:, None])[:, 0])
        done |= is_stop[ids]
        if made == max_new_tokens or done.all():
            return
        logits = context.add(ids)
