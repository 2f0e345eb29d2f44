"""Schemes whose bias depends on what the tokens hold, not on their positions alone.

Queries are q_m, keys k_n, inputs of a layer's attention x_m, all of one head of width d; the bias is added to
q_m·k_n / √d. Where a term is looked up by the distance m − n, it is computed for each distance: see `by_distance`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.linear import Embedding, Linear
from model.position.base import InLayers, Position, distances, ladder, phase_device, phases
from settings import Single, Size


def per_layer(scheme: Position, make: Callable[[], nn.Module]) -> nn.ModuleList:
    """A module of make() for each layer that the scheme acts in: in another one it would never have a gradient."""
    layers = range(scheme.config.num_hidden_layers)
    return nn.ModuleList(make() if scheme.acts_in(layer) else nn.Module() for layer in layers)


def by_distance(values: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(B, heads, Tq, Tk) from values (B, heads, Tq, R) of distances R − 1 … 0, the first for all farther ones.

    What negative distances get, which the mask hides, is finite.
    """
    farthest, (queries, keys) = values.shape[-1] - 1, (q_positions.shape[-1], k_positions.shape[-1])
    if q_positions.dim() == 2 or (farthest < keys and values.requires_grad):  # the gradient of the rest takes longer
        index = farthest - distances(q_positions, k_positions).clamp(0, farthest)
        return values.gather(-1, index.expand(*values.shape[:-1], -1))
    # Of consecutive tokens each row is that before it, one further on: so they lie, if rows are one number longer.
    if missing := max(0, keys - farthest):
        values = torch.cat((values[..., :1].expand(-1, -1, -1, missing), values), dim=-1)
    return values[..., -keys - 1 :].flatten(-2)[..., queries:].unflatten(-1, (queries, keys))


def grouped(k: Tensor, q: Tensor) -> Tensor:
    """Keys (B, key heads, Tk, d), repeated for the query heads that share them."""
    groups = q.shape[1] // k.shape[1]
    return k if groups == 1 else k.repeat_interleave(groups, dim=1)


class Shaw(InLayers):
    """q_m · a_min(m − n, κ) / √d with a trained vector a for each distance. Shaw et al. 2018, equation 4.

    A table for each layer, shared by its heads; keys only, as in the authors' later code.
    """

    class Options(InLayers.Options):
        clip: Size = 64
        """κ: distances from here on share the last vector"""

    def __init__(self, config):
        super().__init__(config)
        self.tables = per_layer(self, lambda: Embedding(self.options.clip + 1, config.head_dim))

    def content_bias(self, layer, x, q, k, q_positions, k_positions):
        scores = q @ self.tables[layer].weight.flip(0).mT / q.shape[-1] ** 0.5
        return by_distance(scores, q_positions, k_positions)


class TransformerXL(InLayers):
    """((q_m + v)·W_R r_{m−n} + u·k_n) / √d, r_p = (sin pθ_0, …, cos pθ_0, …). Dai et al. 2019, section 3.3.

    W_R belongs to a layer, u and v are shared by all, as the authors' code has them. XLNet's (Yang et al. 2019) is the
    same in a causal decoder, where its segment term is one constant.
    """

    def __init__(self, config):
        super().__init__(config)
        shape = config.num_attention_heads, config.head_dim
        self.projections = per_layer(self, lambda: Linear(config.hidden_size, shape[0] * shape[1]))
        self.u, self.v = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(shape))
        self.r: Tensor | None = None  # (distances so far, hidden_size): sines take longer than all the rest

    def waves(self, count: int, like: Tensor) -> Tensor:
        """r_p of the distances from count − 1 to 0, (count, hidden_size), in another tensor's dtype and device."""
        room = 0 if self.r is None else len(self.r)
        if room < count or (self.r.dtype, self.r.device) != (like.dtype, like.device):
            device = phase_device(like)
            with torch.inference_mode(False):  # or what sampling has made could not be trained with
                rows = torch.arange(max(count, 2 * room), device=device).flip(0)  # decoding makes them a few times only
                phi = phases(rows, ladder(self.config.hidden_size, 10000.0, device))
                self.r = torch.cat((phi.sin(), phi.cos()), dim=-1).to(like.dtype).to(like.device)
        return self.r[-count:]

    def w(self, layer: int) -> Tensor:
        """W_R of a layer, (heads, d, hidden_size)."""
        return self.projections[layer].weight.unflatten(0, self.u.shape)

    @staticmethod
    def count(q_positions, k_positions):
        """Distances that `by_distance` needs; of consecutive positions as many as let it go without a copy."""
        if q_positions.dim() == 1:
            return k_positions.shape[-1] + 1
        if torch.compiler.is_compiling():  # which knows no values
            return k_positions.shape[-1]  # within a text or document none is larger
        return int((q_positions.amax(dim=-1) - k_positions.amin(dim=-1)).max()) + 1

    def shared(self, layer, q, k, q_positions, k_positions):
        r = self.waves(self.count(q_positions, k_positions), q).mT
        few = q.shape[-2] < q.shape[-1]  # queries: then w meets them, rather than all distances
        return r if few else self.w(layer) @ r, self.u[:, None] @ grouped(k, q).mT / q.shape[-1] ** 0.5

    def content_bias(self, layer, x, q, k, q_positions, k_positions, r, of_keys):
        q_v, r = (q + self.v[:, None]) / q.shape[-1] ** 0.5, r[..., -self.count(q_positions, k_positions) :]
        q_v = q_v @ self.w(layer) if r.dim() == 2 else q_v
        return by_distance(q_v @ r, q_positions, k_positions) + of_keys[..., : k.shape[-2]]


class Deberta(InLayers):
    """(q_m·K_δ + k_n·Q_δ) / √(3d) beside q_m·k_n / √(3d), δ = min(m − n, κ − 1). He et al. 2021, equation 4.

    K = P W_K and Q = P W_Q, with W in each layer and one table P of κ rows. Both terms are looked up at m − n, as the
    authors' code does; the paper prints n − m in the second, which here would always be the first row.
    """

    class Options(InLayers.Options):
        rows: Size = 128
        """κ: distances from κ − 1 on share the last row"""

    def __init__(self, config):
        super().__init__(config)
        heads = config.num_attention_heads * config.head_dim
        self.table = Embedding(self.options.rows, config.hidden_size)
        self.to_keys = per_layer(self, lambda: Linear(config.hidden_size, heads))
        self.to_queries = per_layer(self, lambda: Linear(config.hidden_size, heads))

    def features(self, layer, q, k):
        return q * 3**-0.5, k  # scales q·k, and below q·K; k·Q is scaled there

    def shared(self, layer, q, k, q_positions, k_positions):
        keys, queries = (
            projections[layer](self.table.weight.flip(0)).unflatten(-1, (q.shape[1], -1)).permute(1, 2, 0)
            for projections in (self.to_keys, self.to_queries)
        )  # (heads, d, rows), of distances from rows − 1 to 0
        return keys / q.shape[-1] ** 0.5, queries.mT @ grouped(k, q).mT / (3 * q.shape[-1]) ** 0.5

    def content_bias(self, layer, x, q, k, q_positions, k_positions, keys, of_keys):
        farthest, (queries, count) = self.options.rows - 1, (q.shape[-2], k.shape[-2])
        far = max(0, count - queries - farthest) if q_positions.dim() == 1 else 0  # keys beyond the table, for all
        index = farthest - distances(q_positions, k_positions[..., far:]).clamp(0, farthest)
        to_content, to_position = q @ keys, of_keys[..., far:count].gather(-2, index.expand(*q.shape[:2], -1, -1))
        near = by_distance(to_content, q_positions, k_positions[..., far:]) + to_position
        return torch.cat((to_content[..., :1] + of_keys[..., :1, :far], near), dim=-1) if far else near


class Inkling(InLayers):
    """(x_m W_r) · B_{m−n}: each token mixes a bank of d_rel learned profiles over the distance. Inkling, 2026.

    B belongs to a layer and is shared by its heads; it is 0 from `extent` on. The model itself has RMS norms and a
    scale of 1/d, a temperature and short convolutions too, which are not about positions.
    """

    class Options(InLayers.Options):
        d_rel: Size = 16
        """profiles in the bank"""
        extent: Size = 512
        """distances that have a bias"""

    def __init__(self, config):
        super().__init__(config)
        mixed = config.num_attention_heads * self.options.d_rel
        self.mixers = per_layer(self, lambda: Linear(config.hidden_size, mixed))
        self.banks = per_layer(self, lambda: Embedding(self.options.extent, self.options.d_rel))

    def content_bias(self, layer, x, q, k, q_positions, k_positions):
        mixed = self.mixers[layer](x).unflatten(-1, (q.shape[1], -1)).transpose(1, 2)  # (B, heads, Tq, d_rel)
        bank = F.pad(self.banks[layer].weight.mT.flip(-1), (1, 0))  # nothing at the extent and beyond
        return by_distance(mixed @ bank, q_positions, k_positions)


class Fox(InLayers):
    """Σ_{l=n+1…m} log f_l, f_l = σ(w·x_l + b): each token forgets a part of what lies before it. Lin et al. 2025, eq. 7.

    Gates are per layer and query head, without a rotation beside them. The cache keeps log f of each token.
    """

    class Options(InLayers.Options):
        start: Single = 0.0
        """b at the start: 0 as the authors', f ≈ 1/2, sees a few tokens; 5, f ≈ 0.993, some 150"""

    def __init__(self, config):
        super().__init__(config)
        heads = config.num_attention_heads
        self.gates = per_layer(self, lambda: Linear(config.hidden_size, heads))
        self.b = nn.Parameter(torch.full((config.num_hidden_layers, heads), self.options.start))

    def kept(self, layer, x):
        return (F.logsigmoid(self.gates[layer](x) + self.b[layer]).mT[..., None],)  # (B, heads, T, 1)

    def shared(self, layer, q, k, q_positions, k_positions, log_f):
        return (log_f.cumsum(dim=-2),)

    def content_bias(self, layer, x, q, k, q_positions, k_positions, log_f, sums):
        sums = sums[..., : k_positions.shape[-1], :]
        return sums[..., -q.shape[-2] :, :] - sums.mT


class CoPE(InLayers):
    """q_m·e[p_mn], p_mn = Σ_{l=n…m} σ(q_m·k_l / √d): counts what a token cares for. Golovneva et al. 2024, eq. 3–5.

    Between whole counts e is interpolated. It is added before 1/√d, as in the authors' code; added after it, as other
    code does, it is another function.
    """

    class Options(InLayers.Options):
        npos: Size = 64
        """rows of e: counts from npos − 1 on share the last"""

    def __init__(self, config):
        super().__init__(config)
        self.e = nn.Parameter(torch.zeros(config.num_hidden_layers, self.options.npos, config.head_dim))

    def content_bias(self, layer, x, q, k, q_positions, k_positions):
        last, queries, keys, k = self.options.npos - 1, q.shape[-2], k.shape[-2], grouped(k, q)
        values = q @ self.e[layer].mT / q.shape[-1] ** 0.5  # (B, heads, Tq, npos)
        near = keys if torch.compiler.is_compiling() else min(keys, queries + 3 * last)
        while True:
            gates = (q @ k[..., keys - near :, :].mT / q.shape[-1] ** 0.5).sigmoid()
            gates = gates.tril(near - queries)  # by order: in another document a later token may stand before
            p = gates.flip(-1).cumsum(dim=-1).flip(-1)
            if near == keys or (p[..., 0] >= last).all():  # then all farther keys share the last row
                break
            near = min(keys, 2 * near)
        p = p.clamp(max=last)
        low, high = (values.gather(-1, end.long()) for end in (p, p.ceil()))
        bias = low + (high - low) * p.frac()
        far = values[..., -1:].expand(-1, -1, -1, keys - near)
        return torch.cat((far, bias), dim=-1) if near < keys else bias
