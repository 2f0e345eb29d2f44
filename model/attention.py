"""Rotation of queries and keys, and causal attention with grouped queries, softmax or linear."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.cache import Cache
from model.config import ModelConfig
from model.device import without_autocast
from model.linear import Linear, joined
from model.norm import RMSNorm
from model.position.base import Position, Rotation

SCORES = 2**19  # of a head in a block, where they need a mask, a bias or weights written out: what caches hold is fast


def waves(*rotations: Rotation) -> Tensor | tuple[Tensor, Tensor]:
    """e^{iφ} (…, T, 1 or heads, r / 2) for `rotate`, from (cos φ, sin φ), each (…, T, r / 2), of all heads or of each."""
    cos, sin = (torch.stack(parts, dim=-2) for parts in zip(*rotations))
    # A compiler has no code generation for complex numbers; in eager mode one complex product is more than twice as fast
    # as the four real ones.
    return (cos, sin) if torch.compiler.is_compiling() else torch.complex(cos, sin)


def rotate(x: Tensor, turns: Tensor | tuple[Tensor, Tensor], layout: str = "half") -> Tensor:
    """Turns each pair of channels by its angle: z_i → z_i e^{iφ_i}. Su et al. 2021, equation 13.

    x is (…, T, heads, d); turns are `waves` of the first r ≤ d channels. Pair i is channels i and
    i + r/2 in the half layout (Hugging Face's Llama), 2i and 2i + 1 in the interleaved one (the paper, Meta's Llama).
    Returns (…, T, heads, d) in x's dtype with the two numbers of a pair side by side in either layout: scores are
    sums over channels, so an order that queries and keys share does not matter to them, and putting halves back
    would cost as much again as the rotation.
    """
    cos = turns.real if (is_complex := isinstance(turns, Tensor)) else turns[0]
    width = 2 * cos.shape[-1]
    turning, *still = x.split((width, x.shape[-1] - width), dim=-1) if width < x.shape[-1] else (x,)
    turning = turning.to(torch.promote_types(x.dtype, cos.dtype))
    if not is_complex:
        sin = turns[1]
        x1, x2 = turning.chunk(2, dim=-1) if layout == "half" else turning.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
    else:
        if layout == "half":
            z = torch.complex(*turning.chunk(2, dim=-1))
        else:
            z = torch.view_as_complex(turning.unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(z * turns)
    turned = turned.flatten(-2).to(x.dtype)
    return torch.cat((turned, *still), dim=-1) if still else turned


def in_documents(input_ids: Tensor, start_token_id: int) -> tuple[Tensor, Tensor]:
    """(B, T) each: the number of a token's document within the row, and its position there.

    A document begins with every start_token_id; what a row has before the first counts from 0, too.
    """
    begins, places = input_ids == start_token_id, torch.arange(input_ids.shape[-1], device=input_ids.device)
    return begins.cumsum(dim=-1), places - (begins * places).cummax(dim=-1).values


def causal_mask(
    q_positions: Tensor, k_positions: Tensor, q_documents: Tensor | None = None, k_documents: Tensor | None = None
) -> Tensor:
    """(…, Tq, Tk), True where the query may look, from (…, Tq) and (…, Tk).

    A token sees itself and what lies before it in its document, and no padding (negative positions); padding sees
    padding, so that no row is empty.
    """
    q, k = q_positions.unsqueeze(-1), k_positions.unsqueeze(-2)
    seen = (k <= q) & ((k >= 0) | (q < 0))
    return seen if q_documents is None else seen & (q_documents.unsqueeze(-1) == k_documents.unsqueeze(-2))


def masked(bias: Tensor, mask: Tensor) -> Tensor:
    """A bias to the scores, -inf where a bool mask allows no look; or its sum with a mask that is such a bias itself.

    A mask of the last keys alone lets all others be seen; the bias is then written to, if it needs no gradient.
    """
    if mask.dtype != torch.bool:
        return bias + mask
    if (others := bias.shape[-1] - mask.shape[-1]) and not bias.requires_grad:
        bias[..., others:].masked_fill_(~mask, float("-inf"))
        return bias
    return torch.where(F.pad(mask, (others, 0), value=True), bias, float("-inf"))


class Toeplitz:
    """The mask of consecutive tokens whose bias depends on the distance alone: (1, heads or 1, Tq, Tk) of a block.

    From the bias of the last query (heads or 1, Tk), for as many queries. The rows of a block go from its last query to
    its first: so each is a view of the same numbers, one further on, and no matrix is in memory.
    """

    def __init__(self, last: Tensor, queries: int):
        self.keys, self.earlier = last.shape[-1], last.shape[-1] - queries
        self.row = F.pad(last, (0, queries), value=float("-inf"))

    def __call__(self, rows: slice) -> Tensor:
        count, end = rows.stop - rows.start, self.earlier + rows.stop
        found = self.row[None, :, self.keys - end : self.keys + count - 1].unfold(-1, end, 1)
        return found if found.device.type == "cpu" else found.contiguous()  # a GPU's kernels want aligned rows


def blocks(queries: int, keys: int, heads: int = 1) -> list[slice]:
    """Slices of the queries, of at most SCORES scores, unless one query alone has more; one slice for up to twice that.

    heads: of all rows of the batch. Without a gradient, when no block is computed twice, many of them have fewer scores.

    All of about as many scores, where later queries see more keys: memory that one has freed then serves the next. Slices
    of equal length need more each time, and the allocator of a CPU kept 8 GB for 0.4 GB in use.
    """
    most = SCORES if torch.is_grad_enabled() else SCORES // min(16, max(1, heads // 2))
    if queries * keys <= 2 * most:  # known to a compiler for all lengths up to a bound, unlike the slices below
        return [slice(0, queries)]
    slices, seen = [], keys - queries
    while seen < keys:
        size = max(1, (math.isqrt(seen**2 + 4 * most) - seen) // 2)  # the largest with size · (seen + size) ≤ most
        start, seen = seen, min(keys, seen + size)
        slices.append(slice(start - keys + queries, seen - keys + queries))
    return slices


def cut(x: Tensor, rows: list[slice]) -> tuple[Tensor, ...]:
    """The rows of x (…, T, any), which all of them cover: unlike by indexing, with one gradient for all."""
    return x.split([each.stop - each.start for each in rows], dim=-2)


def recomputed(function: Callable[..., Tensor], *inputs) -> Tensor:
    """function(*inputs), of which the inputs alone are kept: the backward pass computes it once more."""
    if not torch.is_grad_enabled():  # or sampling would wait for the import of a compiler
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def as_it_is(loop: Callable) -> Callable:
    """loop, which a compiler that comes to it leaves alone: it would unroll it."""
    return torch.compiler.disable(loop) if torch.compiler.is_compiling() else loop


@dataclass
class AttentionInputs:
    """What the attention of a layer is told beside its hidden states (B, T, hidden_size)."""

    layer: int  # which of the cache's layers this is
    cache: Cache | None = None
    positions: Tensor | None = None  # (T,) or (B, T); negative ones are padding, which the mask hides too
    k_positions: Tensor | None = None  # (Tk,) or (B, Tk)
    documents: Tensor | None = None  # (B, T), the number of each token's in its row; None: a row is one
    # What is allowed (bool) or added to the scores (float), broadcast to (B, heads, T, Tk). None: each token sees itself
    # and all before it; not where a filled cache meets more than one token, nor with content. Where there are several
    # `blocks`: a function of one of them, which gives that of its queries and of the keys up to the last of these, or with
    # content of the last of these keys alone, where all others are seen.
    mask: Tensor | Callable[[slice], Tensor] | None = None
    turns: Tensor | tuple[Tensor, Tensor] | None = None  # `waves` by which queries and keys turn
    temperature: Tensor | None = None  # (…, heads or 1, T), a factor on the queries
    layout: str = "half"  # of the pairs, see `rotate`
    features: Position | None = None  # the scheme, where it changes queries and keys
    content: Position | None = None  # the scheme, where it has a bias from content
    shared: tuple[Tensor, ...] = ()  # what the content's bias needs in all blocks

    def turned(self, qk: Tensor) -> Tensor:
        """Heads of queries and keys (B, T, heads, any), rotated."""
        return qk if self.turns is None else rotate(qk, self.turns, self.layout)


class Attention(nn.Module):
    """The projections that all kinds of attention share, with grouped key and value heads (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim, self.heads = config.head_dim, (config.num_attention_heads, config.num_key_value_heads)
        q_size, kv_size = (n * config.head_dim for n in self.heads)
        bias = config.attention_bias
        self.q_proj = Linear(config.hidden_size, q_size, bias=bool(bias))
        self.k_proj = Linear(config.hidden_size, kv_size, bias=bool(bias))
        self.v_proj = Linear(config.hidden_size, kv_size, bias=bool(bias))
        self.o_proj = Linear(q_size, config.hidden_size, bias=bias is True)
        if config.qk_norm:  # Henry et al. 2020; as in Qwen3, before the rotation
            self.q_norm, self.k_norm = (RMSNorm(config.head_dim, config.rms_norm_eps) for _ in range(2))
        else:
            self.q_norm = self.k_norm = None

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys in one (B, T, heads + key heads, head_dim), and values, of x (B, T, hidden_size)."""
        heads = joined(x, self.q_proj, self.k_proj, self.v_proj).unflatten(-1, (-1, self.head_dim))
        qk, v = heads.split((sum(self.heads), self.heads[1]), dim=-2)  # whose gradient is one `cat`
        if self.q_norm is not None:
            q, k = self.apart(qk)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=-2)
        return qk, v

    def apart(self, qk: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, T, heads, any) and keys (B, T, key heads, any) of both in one."""
        return qk.split(self.heads, dim=-2)


class SoftmaxAttention(Attention):
    """softmax(q kᵀ / √d + bias) v over the tokens seen. Vaswani et al. 2017, equation 1."""

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        """(B, T, hidden_size) → (B, T, hidden_size)."""
        qk, v = self.projected(x)
        if inputs.features is not None:
            qk = torch.cat(inputs.features.features(inputs.layer, *self.apart(qk)), dim=-2)
        q, k, v = (t.transpose(1, 2) for t in (*self.apart(inputs.turned(qk)), v))  # (B, heads, T, head_dim)
        if inputs.temperature is not None:
            q = (q * inputs.temperature[..., None]).to(q.dtype)
        kept = () if inputs.content is None else self.exactly(inputs.content.kept, inputs.layer, x)
        if inputs.cache is not None:
            k, v, *kept = inputs.cache.update(inputs.layer, k, v, *kept)
        if inputs.content is not None:
            places = inputs.positions, inputs.k_positions
            inputs = replace(inputs, shared=self.exactly(inputs.content.shared, inputs.layer, q, k, *places, *kept))
        width, wider = v.shape[-1], max(0, q.shape[-1] - v.shape[-1])
        if wider:  # by features: without this SDPA would keep all scores in memory
            v = F.pad(v, (0, wider))
        attend = as_it_is(self.in_blocks) if callable(inputs.mask) else self.attended
        out = attend(inputs, x, q, k, v, *kept)
        out = out[..., :width] if wider else out
        return self.o_proj(out.transpose(1, 2).flatten(-2))

    def attended(self, inputs: AttentionInputs, x: Tensor, q: Tensor, k: Tensor, v: Tensor, *kept: Tensor) -> Tensor:
        """(B, heads, Tq, any) of queries (B, heads, Tq, any), those of the last Tq of the tokens of k, v and kept."""
        mask = inputs.mask
        if inputs.content is not None:
            seen = x, q, k, inputs.positions, inputs.k_positions, *kept, *inputs.shared
            bias = self.exactly(inputs.content.content_bias, inputs.layer, *seen)
            mask = (bias if mask is None else masked(bias, mask)).to(q.dtype)
        # is_causal aligns the first query with the first key: right only where no key lies before the queries.
        is_causal = mask is None and q.shape[-2] > 1
        scale = 1 / math.sqrt(self.head_dim)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=True
        )

    def in_blocks(self, inputs: AttentionInputs, x: Tensor, q: Tensor, *of_keys: Tensor) -> Tensor:
        """As `attended`, block by block. Nothing of a block is kept: the backward pass computes it once more."""
        rows = blocks(q.shape[-2], of_keys[0].shape[-2], q.shape[0] * q.shape[1])
        parts = zip(rows, *(cut(t, rows) for t in (x, q)))
        return torch.cat([recomputed(self.block, inputs, *part, *of_keys) for part in parts], dim=-2)

    def block(self, inputs: AttentionInputs, rows: slice, x: Tensor, q: Tensor, *of_keys: Tensor) -> Tensor:
        """As `attended`, of x and q at the rows alone and of all keys, some of which lie after them."""
        end = of_keys[0].shape[-2] - inputs.positions.shape[-1] + rows.stop
        places = {"positions": inputs.positions[..., rows], "k_positions": inputs.k_positions[..., :end]}
        backwards = isinstance(inputs.mask, Toeplitz)
        inputs = replace(inputs, mask=inputs.mask(rows), **places)
        out = self.attended(inputs, x, q.flip(-2) if backwards else q, *(t[..., :end, :] for t in of_keys))
        return out.flip(-2) if backwards else out

    @staticmethod
    def exactly(hook, layer: int, *tensors: Tensor):
        """hook(layer, *tensors) in float32 or better: gates, and their sums over all tokens, are lost in less."""
        with without_autocast(tensors[0].device):
            return hook(layer, *(t.float() if t.dtype in (torch.bfloat16, torch.float16) else t for t in tensors))


class LinearAttention(Attention):
    """φ(q) Σ φ(k)ᵀv / φ(q) Σ φ(k) with φ = elu + 1. Katharopoulos et al. 2020, equation 9.

    The cache keeps the two sums, not keys and values: the cost of a token does not grow with those seen. Rotations
    act in the numerator only (Su et al. 2021, equation 19): rotated weights may be negative, and so may their sum.
    """

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        # Sums over all tokens seen: the next token would be lost in those of half precision.
        qk, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in self.projected(x))
        qk, groups = F.elu(qk) + 1, self.heads[0] // self.heads[1]
        if inputs.positions is not None and inputs.positions.dim() == 2:  # queries of padding count nothing anyway
            qk = qk.masked_fill((inputs.positions < 0)[..., None, None], 0.0)
        (q, k), (turned_q, turned_k) = self.apart(qk), self.apart(inputs.turned(qk))
        k, v, turned_k = (t.repeat_interleave(groups, dim=-2) for t in (k, v, turned_k))
        of_tokens = [t.transpose(1, 2) for t in (q, k, v, turned_q, turned_k)]  # (B, heads, T, d)
        sums = None if inputs.cache is None else inputs.cache.sums(inputs.layer, x.shape[-2])
        chunks = blocks(x.shape[-2], x.shape[-2])
        scan = self.scan if len(chunks) == 1 else as_it_is(self.scan)
        out, sums = scan(chunks, sums, inputs.documents, *of_tokens)
        if inputs.cache is not None:
            inputs.cache.layers[inputs.layer] = sums
        return self.o_proj(out.to(x.dtype).transpose(1, 2).flatten(-2))

    @staticmethod
    def scan(
        chunks: list[slice], sums: tuple[Tensor, Tensor] | None, documents: Tensor | None, *of_tokens: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(B, heads, T, d), and the sums after it, of q, k, v and turned q and k, each (B, heads, T, d).

        Weights are written out within a chunk; the sums Σ φ(k)ᵀv (B, heads, d, d) and Σ φ(k) (B, heads, 1, d), of the
        tokens before it or, with documents (B, T), of those in the last one's document, stand for what lies before.
        """
        found = []
        for chunk, *parts in zip(chunks, *(cut(t, chunks) for t in of_tokens)):
            q, k, v, turned_q, turned_k = parts
            weights, key_sums = (turned_q @ turned_k.mT).tril(), k.cumsum(dim=-2)
            if documents is not None:
                here = documents[:, None, chunk, None]  # (B, 1, T, 1)
                is_same = here == here.mT
                weights, key_sums = weights * is_same, is_same.tril().to(k.dtype) @ k
                turned_k = turned_k * is_same[..., -1:]
            numerator, state = weights @ v, turned_k.mT @ v
            if sums is not None:
                (before, keys_before), seen = sums, turned_q @ sums[0]
                if documents is not None:
                    goes_on = here == documents[:, None, chunk.start - 1, None, None]
                    seen, keys_before, before = seen * goes_on, keys_before * goes_on, before * goes_on[..., -1:, :]
                numerator, key_sums, state = numerator + seen, key_sums + keys_before, state + before
            sums = state, key_sums[..., -1:, :]
            normalizer = (q * key_sums).sum(dim=-1, keepdim=True)
            found.append(numerator / normalizer.clamp(min=1e-6))  # a row of padding has seen nothing: 0 / 0
        return torch.cat(found, dim=-2), sums


ATTENTIONS = {"softmax": SoftmaxAttention, "linear": LinearAttention}
