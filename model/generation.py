"""Sampling: from logits to probabilities, to a token, to a text."""

import copy
import random
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from base import InputError
from model.cache import Cache
from model.transformer import Transformer

MAX_SCORES = 2**24  # of queries with keys, per head, while a prompt is read: bounds the memory, however long it is


def probabilities(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """(…, V) probabilities of logits (…, V) after temperature, then top-k (Fan et al. 2018), then top-p.

    top_p keeps the smallest set of the likeliest tokens that reaches that probability (Holtzman et al. 2020).
    """
    # Float32, for Apple's GPUs have no more, where a temperature below 1e-45 is 0. The best logit is taken off first:
    # it stays 0 however small the temperature, and the others become -inf at worst.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).float() / max(temperature, 1e-30)
    if top_k is not None and top_k < scaled.shape[-1]:
        best = scaled.topk(top_k, dim=-1)
        scaled = torch.full_like(scaled, float("-inf")).scatter(-1, best.indices, best.values)
    probs = scaled.softmax(dim=-1)
    if top_p is not None:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        kept = ordered.masked_fill(before >= top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(-1, order, kept)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def sample_token(
    logits: Tensor,
    generators: list[torch.Generator],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """(B,) token ids, each drawn for itself from logits (B, V), with a generator a row.

    Temperature 0 takes the likeliest. Else it is the first to arrive, each after an exponential time with its
    probability as the rate: unlike a place among cumulative sums, this depends on the last bits of the logits only
    where two arrive together.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    probs = probabilities(logits, temperature, top_k, top_p)
    times = torch.empty_like(probs)
    for row, generator in zip(times, generators):
        row.exponential_(generator=generator)
    return (probs / times).argmax(dim=-1)


def prefill(model: Transformer, input_ids: Tensor, cache: Cache) -> Tensor:
    """(1, V) logits of what follows the prompt (T,), which is read in parts that fit into bounded memory."""
    for part in input_ids.split(max(1, MAX_SCORES // len(input_ids))):
        logits = model(part[None], cache, logits_to_keep=1)[:, -1]
    return logits


def decoder(model: Transformer, dtype: torch.dtype | None) -> Transformer:
    """The model with weights in dtype: itself, or a copy, which reads half the memory for a token in bfloat16."""
    return model if dtype in (None, model.output_weight.dtype) else copy.deepcopy(model).to(dtype)


@torch.inference_mode()
def generate(
    model: Transformer,
    input_ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    num_samples: int = 1,
    seed: int = 0,
    stop_ids: Iterable[int] = (),
    token_ids: Iterable[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[Tensor]:
    """Yields the (num_samples,) ids of each new position after one prompt (T,); -1 in a row from its stop token on.

    The prompt is read once for all samples; the end comes when all rows have ended, or after max_new_tokens.
    A row's random numbers depend on the seed and its index alone. So do its tokens, except where two are so close that
    the last bits of the logits decide, which may change with the number of rows.
    stop_ids: each of them ends the row that draws it.
    token_ids: those that may be drawn beside stop_ids, as others only pad the output layer; None: all.
    dtype: of the weights while tokens are made; None: as they are. On a CPU the prompt is read with the model's own:
    products of many rows in bfloat16 are slow there, those of one row wait for the memory only.
    InputError where the model's logits are not finite.
    """
    device, vocab_size = input_ids.device, model.config.vocab_size
    seeds = [random.Random(f"{seed} {row}").getrandbits(63) for row in range(num_samples)]
    generators = [torch.Generator(device).manual_seed(each) for each in seeds]
    is_stop = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    is_stop[list(stop_ids)] = True
    barred = torch.zeros(vocab_size, device=device)
    if token_ids is not None:
        barred.fill_(float("-inf"))[list(token_ids)] = 0.0
        barred[is_stop] = 0.0
    cache, light = Cache(), decoder(model, dtype)
    logits = prefill(model if device.type == "cpu" else light, input_ids, cache).expand(num_samples, -1)
    cache.repeat(num_samples)
    done = torch.zeros(num_samples, dtype=torch.bool, device=device)
    for made in range(1, max_new_tokens + 1):
        if not torch.isfinite(logits).all():
            raise InputError("the model's logits are not finite: its weights are damaged, or training went astray")
        ids = sample_token(logits + barred, generators, temperature, top_k, top_p)
        done |= is_stop[ids]
        yield ids.masked_fill(done, -1)
        if made == max_new_tokens or done.all():
            return
        logits = light(ids[:, None], cache)[:, -1]
