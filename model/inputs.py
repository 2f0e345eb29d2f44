"""What the attention of each layer is told of positions: computed once a pass, and in decoding once for many tokens."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from model.attention import SCORES, AttentionInputs, Toeplitz, blocks, causal_mask, masked, waves
from model.cache import Cache
from model.device import without_autocast
from model.position import Position

AHEAD = 64  # tokens, as long as SCORES of a head are enough for them


def attention_inputs(
    scheme: Position,
    positions: Tensor,
    cache: Cache | None,
    is_causal: bool,
    dtype: torch.dtype,
    documents: Tensor | None = None,
    batch: int = 1,
) -> list[AttentionInputs]:
    """For each layer, of tokens at positions (T,) or (B, T) that continue the cache.

    is_causal: whether attention knows without a mask what each token sees. dtype: of the scores. batch: rows of tokens.
    """
    k_positions = positions if cache is None else cache.key_positions(positions)
    has_bias, has_content = scheme.overrides("bias"), scheme.overrides("content_bias")
    earlier, heads = k_positions.shape[-1] - positions.shape[-1], scheme.config.num_attention_heads

    def seen(rows):
        keys = slice(earlier + rows.stop)
        of_documents = () if documents is None else (documents[..., rows], documents[..., keys])
        mask = causal_mask(positions[..., rows], k_positions[..., keys], *of_documents)
        return mask.unsqueeze(-3) if mask.dim() == 3 else mask  # one mask for all heads

    def bias(rows):
        return scheme.bias(positions[..., rows], k_positions[..., : earlier + rows.stop])

    def merged(bias, mask):
        return mask if bias is None else in_four(masked(bias, mask), dtype)

    def among_themselves(rows):  # tokens of a block at consecutive positions: all before it is seen
        return causal_mask(positions[rows], positions[rows])

    def by_distance(last):  # the bias of the last query
        if last is None and is_causal:
            return None
        last = torch.zeros(1, 1, k_positions.shape[-1], device=positions.device) if last is None else last
        return Toeplitz(last[:, 0].to(dtype), positions.shape[-1])

    def in_blocks(layer, rows):
        with without_autocast(positions.device):
            return merged(of_layer(bias(rows), layer), seen(rows))

    rows, mask = blocks(positions.shape[-1], k_positions.shape[-1], batch * heads), None
    if len(rows) == 1:
        whole = bias(rows[0])
        if not is_causal or whole is not None or has_content:
            mask = seen(rows[0])
        masks = [merged(each, mask) for each in whole] if isinstance(whole, list) else merged(whole, mask)
    elif positions.dim() == 1 and (not has_bias or (scheme.is_toeplitz(positions) and not has_content)):
        last, mask = scheme.bias(positions[-1:], k_positions), by_distance(None)
        masks = [by_distance(each) for each in last] if isinstance(last, list) else by_distance(last)
        masks = among_themselves if has_content else masks
    else:
        mask = None if is_causal else seen
        masks = [partial(in_blocks, layer) for layer in range(scheme.config.num_hidden_layers)]
    tokens = {"cache": cache, "positions": positions, "k_positions": k_positions, "documents": documents}
    return of_layers(scheme, tokens, masks, turns(scheme, positions), scheme.temperature(positions), mask)


@dataclass
class Ahead:
    """What a scheme contributes to the coming tokens, at positions from `first` on, of which each will be a pass."""

    first: int
    k_positions: Tensor  # (first + n,)
    embedding: Tensor | None  # (n, hidden_size)
    bias: Tensor | list[Tensor] | None  # (…, heads or 1, n, first + n)
    turns: Tensor | list[Tensor] | None  # (n, 1 or heads, pairs)
    temperature: Tensor | list[Tensor] | None  # (heads or 1, n)


def inputs_of_next(scheme: Position, cache: Cache, dtype: torch.dtype) -> tuple[Tensor | None, list[AttentionInputs]]:
    """The embedding (1, hidden_size), and as `attention_inputs`, of one token after those at 0, 1, … in the cache."""
    start, ahead = cache.length, cache.ahead
    if ahead is None or not ahead.first <= start < len(ahead.k_positions):
        ahead = cache.ahead = look_ahead(scheme, start, cache.positions.device)
    cache.positions = ahead.k_positions
    row, k_positions = slice(start - ahead.first, start - ahead.first + 1), ahead.k_positions[: start + 1]
    bias = of_each(lambda each: in_four(each[..., row, : start + 1], dtype), ahead.bias)
    temperature = of_each(lambda each: each[..., row], ahead.temperature)
    turned = of_each(lambda each: each[row], ahead.turns)
    embedding = None if ahead.embedding is None else ahead.embedding[row]
    tokens = {"cache": cache, "positions": k_positions[start:], "k_positions": k_positions}
    return embedding, of_layers(scheme, tokens, bias, turned, temperature)


def look_ahead(scheme: Position, first: int, device: torch.device) -> Ahead:
    """Of as many tokens as SCORES and the scheme's positions allow."""
    count = max(1, min(AHEAD, SCORES // first, (scheme.max_length or first + AHEAD) - first))
    k_positions = torch.arange(first + count, device=device)
    coming = k_positions[first:]
    of_tokens = scheme.embedding(coming), scheme.bias(coming, k_positions), turns(scheme, coming)
    return Ahead(first, k_positions, *of_tokens, scheme.temperature(coming))


def turns(scheme: Position, positions: Tensor):
    """`waves` by which queries and keys at positions (…, T) turn, in all layers or a list; None: nothing turns."""
    config = scheme.config

    def of(queries, keys):
        if isinstance(queries, list) or isinstance(keys, list):
            return [of(of_layer(queries, layer), of_layer(keys, layer)) for layer in range(config.num_hidden_layers)]
        if queries is None or keys is None:
            return queries and waves(queries)
        return waves(*[queries] * config.num_attention_heads, *[keys] * config.num_key_value_heads)

    return of(scheme.rotation(positions), scheme.key_rotation(positions))


def of_layers(scheme: Position, tokens: dict, masks, turns, temperatures, mask=None) -> list[AttentionInputs]:
    """For each layer, of the tokens that all see alike; with the mask alone where the scheme does not act."""
    content, features = (scheme if scheme.overrides(hook) else None for hook in ("content_bias", "features"))
    inputs = []
    for layer in range(scheme.config.num_hidden_layers):
        own = {"mask": mask}
        if scheme.acts_in(layer):
            own = {"layout": scheme.layout, "features": features, "content": content}
            own |= {"mask": of_layer(masks, layer), "turns": of_layer(turns, layer)}
            own |= {"temperature": of_layer(temperatures, layer)}
        inputs.append(AttentionInputs(layer, **tokens, **own))
    return inputs


def of_layer(found, layer: int):
    """What a layer gets of something that is the same for all of them, or a list."""
    return found[layer] if isinstance(found, list) else found


def of_each(function, found):
    """function of something, or of each in a list, unless it is None."""
    if isinstance(found, list):
        return [of_each(function, each) for each in found]
    return None if found is None else function(found)


def in_four(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """In four dimensions: given three, SDPA takes a slow path that copies all keys."""
    return bias.to(dtype).reshape(-1, *bias.shape[-3:])
