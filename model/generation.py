"""Sampling: from logits to probabilities to tokens."""

import copy
import random
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from base import InputError
from model.cache import Cache
from model.transformer import Transformer

MAX_SCORES = 2**24  # attention scores per head in one part of a prompt; bounds memory for prompts of any length


def probabilities(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """(…, V) probabilities of logits (…, V) after temperature, then top-k (Fan et al. 2018), then top-p.

    top_p keeps the fewest tokens, the likeliest first, that reach that probability (Holtzman et al. 2020).
    """
    # In float32, since Apple GPUs lack float64; there a temperature below 1e-45 is 0. The largest logit is subtracted
    # first: it stays 0 however small the temperature, and the others become -inf at worst.
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
    """(B,) token ids, each drawn independently from logits (B, V), with one generator per row.

    Temperature 0 takes the likeliest. Otherwise each token gets an exponential waiting time whose rate is its
    probability, and the first one wins: unlike inverting cumulative sums, this depends on the last bits of the logits
    only when two times nearly coincide.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    probs = probabilities(logits, temperature, top_k, top_p)
    times = torch.empty_like(probs)
    for row, generator in zip(times, generators):
        row.exponential_(generator=generator)
    return (probs / times).argmax(dim=-1)


def prefill(model: Transformer, input_ids: Tensor, cache: Cache) -> Tensor:
    """(1, V) logits of the token after the prompt (T,), which is read in parts to bound memory."""
    for part in input_ids.split(max(1, MAX_SCORES // len(input_ids))):
        logits = model(part[None], cache, logits_to_keep=1)[:, -1]
    return logits


def decoding_model(model: Transformer, dtype: torch.dtype | None) -> Transformer:
    """The model with weights in dtype: itself, or a copy. In bfloat16 a token reads half the memory."""
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

    The prompt is read once for all samples. Generation ends when all rows have ended, or after max_new_tokens.
    A row's random numbers depend only on the seed and its index. So do its tokens, unless two are so close that the
    last bits of the logits decide, which may change with the number of rows.
    stop_ids: drawing any of them ends the row.
    token_ids: the ids that may be drawn besides stop_ids, since others may only pad the output layer; None: all.
    dtype: of the weights while decoding; None: unchanged. On a CPU the prompt is read with the model's own dtype:
    there products of many rows are slow in bfloat16, while those of one row only wait for memory.
    InputError: the model's logits are not finite.
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
    cache, decoding = Cache(), decoding_model(model, dtype)
    logits = prefill(model if device.type == "cpu" else decoding, input_ids, cache).expand(num_samples, -1)
    cache.repeat(num_samples)
    done = torch.zeros(num_samples, dtype=torch.bool, device=device)
    for made in range(1, max_new_tokens + 1):
        if not torch.isfinite(logits).all():
            raise InputError("the model's logits are not finite: its weights are damaged, or its training diverged")
        ids = sample_token(logits + barred, generators, temperature, top_k, top_p)
        done |= is_stop[ids]
        yield ids.masked_fill(done, -1)
        if made == max_new_tokens or done.all():
            return
        logits = decoding(ids[:, None], cache)[:, -1]
