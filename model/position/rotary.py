"""Schemes that turn queries and keys."""

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from model.position.base import InLayers, ladder, phase_device, phases
from model.scaling import AnyScaling
from settings import Positive, Single


class Rotary(InLayers):
    """Pair i of each query and key head is turned by the angle mθ_i at position m. Su et al. 2021, equation 15."""

    class Options(InLayers.Options):
        base: Annotated[Single, Field(gt=1)] = 10000.0
        """θ_i = base^(−2i / head_dim), radians per token"""
        layout: Literal["half", "interleaved"] = "half"
        """pairs: channels i and i + d/2 (Hugging Face's Llama), or 2i and 2i + 1 (the paper, Meta's Llama)"""

        def check(self, config):
            super().check(config)
            if config.head_dim % 2:
                raise ValueError(f"{self.scheme} rotates pairs: model.head_dim must be even, got {config.head_dim}")

    def __init__(self, config):
        super().__init__(config)
        self.layout = self.options.layout

    # A subclass has theta(device): float64 radians per token, (pairs,) or (layers, pairs), and a factor on cos and sin.
    def rotation(self, positions):
        theta, factor = self.theta(phase_device(positions))

        def turns(row):
            phi = phases(positions, row)
            return tuple((factor * wave).float().to(positions.device) for wave in (phi.cos(), phi.sin()))

        return turns(theta) if theta.dim() == 1 else [turns(row) for row in theta]


class Rope(Rotary):
    """θ is the fixed ladder, all of it or a part, as it is or scaled to reach farther than trained. Su et al. 2021."""

    class Options(Rotary.Options):
        fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
        """share of the pairs of a head that turn"""
        partial: Literal["neox", "p_rope"] = "neox"
        """fraction < 1: neox spreads the whole ladder over the first channels, p_rope stops its slowest pairs"""
        scaling: AnyScaling | None = None
        """null, or {rope_type: linear | ntk | yarn | llama3 | longrope, factor: s, …}"""

        def check(self, config):
            super().check(config)
            if self.turning_pairs(config) < 1:
                raise ValueError(
                    f"position.fraction {self.fraction} of head_dim {config.head_dim} leaves no pair to turn"
                )
            if self.scaling:
                self.scaling.check(self.rotary_dim(config), self.base, self.original_length(config))

        def updated(self, changes):
            if changes.get("scaling") and self.scaling:
                trained = self.scaling.model_dump(exclude_none=True)
                raise ValueError(f"position.scaling: the model was trained with {trained}, no other can take its place")
            return super().updated(changes)

        def turning_pairs(self, config) -> int:
            """Pairs of a head that turn."""
            return int(round(self.fraction * config.head_dim / 2, 9))

        def rotary_dim(self, config) -> int:
            """Channels that the ladder is laid over."""
            return 2 * self.turning_pairs(config) if self.partial == "neox" else config.head_dim

        def original_length(self, config) -> int:
            """L of the scaling: tokens of context that the model was trained on without it."""
            return self.scaling.original_max_position_embeddings or config.max_position_embeddings

    def theta(self, device):
        options, dim = self.options, self.options.rotary_dim(self.config)
        theta, factor = ladder(dim, options.base, device), 1.0
        if options.scaling:
            theta, factor = options.scaling.stretched(theta, dim, options.base, options.original_length(self.config))
        theta[options.turning_pairs(self.config) :] = 0.0  # p-RoPE: the slowest pairs stand still (Barbero et al. 2024)
        return theta, factor

    def rope_parameters(self):
        options, dim = self.options, self.config.head_dim
        pairs = options.turning_pairs(self.config)
        if type(self) is not Rope or options.layout != "half" or (pairs < dim // 2 and options.partial != "p_rope"):
            return None  # its Llama would silently rotate whole heads in halves, and know nothing of a subclass
        rope = {"rope_theta": options.base, "rope_type": "default"}
        if options.scaling:
            rope = options.scaling.rope_parameters(dim, options.base, options.original_length(self.config))
        if pairs < dim // 2:
            if rope["rope_type"] not in ("default", "linear"):
                return None
            share = 2 * pairs / dim
            if share * dim < 2 * pairs:  # as whole numbers of pairs are cut off there, this would be one too few
                share = math.nextafter(share, 1)
            rope |= {"rope_type": "proportional", "partial_rotary_factor": share}
        return rope


class LearnedTheta(Rotary):
    """θ are trained, from the fixed ladder on.

    The parameter is Δ log θ, the drift from the ladder: in the logarithm no step can turn a frequency's sign,
    and the start is exactly that of `rope`.
    """

    class Options(Rotary.Options):
        per_layer: bool = False
        """a set of θ for each layer; else one for all"""

    measured = {"theta_drift": "|Δ log θ| of each pair"}

    def __init__(self, config):
        super().__init__(config)
        layers = (config.num_hidden_layers,) if self.options.per_layer else ()
        self.log_theta_drift = nn.Parameter(torch.zeros(*layers, config.head_dim // 2))

    def theta(self, device):
        start = ladder(self.config.head_dim, self.options.base, device)
        return start * self.log_theta_drift.to(device, torch.float64).exp(), 1.0

    def metrics(self):
        return {"theta_drift": self.log_theta_drift.detach().abs().tolist()}


class XPos(Rotary):
    """Pair i of queries also grows by ζ_i^(m / B), that of keys by ζ_i^(−n / B). Sun et al. 2023, section 3.

    ζ_i = (2i / d + 0.4) / 1.4. Scores see m − n alone, but keys grow beyond float32: at B = 512 the factor overflows from
    36,261 on, and a key of size 2^20 from 30,595 on, where the scheme ends.
    """

    class Options(Rotary.Options):
        scale_base: Positive = 512.0
        """B: positions over which a pair decays by ζ"""

        def check(self, config):
            super().check(config)
            if (reach := self.reach()) < (needed := config.max_position_embeddings):
                raise ValueError(
                    f"position.scale_base {self.scale_base}: keys overflow float32 from position {reach} on, "
                    f"before max_position_embeddings {needed}"
                )

        def reach(self) -> int:
            """Positions up to which a key of size 2^20, times ζ_0^(−n / B), is within float32."""
            return math.ceil(self.scale_base * math.log(torch.finfo(torch.float32).max / 2**20) / math.log(1.4 / 0.4))

    def __init__(self, config):
        super().__init__(config)
        self.max_length = self.options.reach()

    def theta(self, device):
        return ladder(self.config.head_dim, self.options.base, device), 1.0

    def scaled(self, positions, sign):
        device, dim = phase_device(positions), self.config.head_dim
        zeta = (torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim + 0.4) / 1.4
        size = zeta ** (sign * positions.to(device)[..., None] / self.options.scale_base)
        return tuple(size.float().to(positions.device) * wave for wave in super().rotation(positions))

    def rotation(self, positions):
        return self.scaled(positions, 1)

    def key_rotation(self, positions):
        return self.scaled(positions, -1)


class PoPE(Rotary):
    """Σ_c softplus(q_c) softplus(k_c) cos((m − n)θ_c − δ_c) / √d: what in the radius, where in the angle.

    Gopalakrishnan et al. 2025. θ_c = base^(−c / d) for all d channels; δ is trained per layer and key head. The authors
    hold it in [−2π, 0]; as an angle it needs no bounds, at which its gradient would end. A channel becomes a pair, so
    that 2d numbers of a key are cached.
    """

    class Options(InLayers.Options):
        base: Annotated[Single, Field(gt=1)] = 10000.0
        """θ_c = base^(−c / head_dim), radians per token"""

    layout = "interleaved"

    def __init__(self, config):
        InLayers.__init__(self, config)
        self.delta = nn.Parameter(torch.zeros(config.num_hidden_layers, config.num_key_value_heads, config.head_dim))

    def theta(self, device):
        return ladder(2 * self.config.head_dim, self.options.base, device), 1.0

    def features(self, layer, q, k):
        delta = self.delta[layer]
        pairs = (q, delta.new_tensor(1.0), delta.new_tensor(0.0)), (k, delta.cos(), delta.sin())
        return tuple(
            torch.stack((F.softplus(x) * real, F.softplus(x) * imaginary), dim=-1).flatten(-2).to(x.dtype)
            for x, real, imaginary in pairs
        )
