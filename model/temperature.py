"""Factors on the queries, an option of every scheme: how sharp attention is at a position, in whatever order tokens stand.

In all of them n is the number of tokens that a query sees, its position + 1. They are the confounder of every figure
about length: attention spreads as n grows, whatever the encoding does.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from settings import FrozenConfig, Positive, Single, Size, named_by


class Temperature(FrozenConfig):
    """Multiplies the queries, and with them q·k and what a scheme makes of the queries; a bias without them stays."""

    def initial(self, config) -> Tensor | None:
        """What of it is trained, at the start; None: nothing."""

    def factor(self, n: Tensor, config, trained: Tensor | None) -> Tensor | list[Tensor]:
        """(…, heads or 1, T) from n (…, 1, T) in float64; or one for each layer."""
        raise NotImplementedError


class LogTemperature(Temperature):
    """max(1, log n / log L): the entropy of attention stays that at L. Su 2021; Chiang & Cholak 2022."""

    kind: Literal["log"]
    """name of the temperature"""
    length: Annotated[int, Field(ge=2, lt=2**31)] | None = None
    """L; null: max_position_embeddings"""

    def factor(self, n, config, trained):
        return (n.log() / math.log(self.length or max(2, config.max_position_embeddings))).clamp(min=1)


class SSMaxTemperature(Temperature):
    """σ log n, with σ trained for each layer and head. Nakanishi 2025, equation 3."""

    kind: Literal["ssmax"]
    """name of the temperature"""
    start: Annotated[Single, Field(gt=0)] | None = None
    """σ at the start; null: 1 / mean log n over the trained context, so that the mean factor is 1; the paper: 0.43"""

    def initial(self, config):
        length = max(2, config.max_position_embeddings)
        mean = math.lgamma(length + 1) / length  # log n! / n: a tensor would have no value on the meta device
        return torch.full((config.num_hidden_layers, config.num_attention_heads), self.start or 1 / mean)

    def factor(self, n, config, trained):
        return [sigma[:, None] * n.log() for sigma in trained.to(n)]


class FloorTemperature(Temperature):
    """1 + a log(1 + ⌊n / F⌋): nothing up to F tokens. Llama 4 (2025), there in the layers without rotation."""

    kind: Literal["floor"]
    """name of the temperature"""
    scale: Positive = 0.1
    """a"""
    length: Size = 8192
    """F"""

    def factor(self, n, config, trained):
        return 1 + self.scale * (n / self.length).floor().log1p()


class ConstantTemperature(Temperature):
    """One factor, such as 1 + c log s for s times the trained length. Gelberg et al. 2025 (DroPE), appendix C.2."""

    kind: Literal["constant"]
    """name of the temperature"""
    value: Positive
    """the factor"""

    def factor(self, n, config, trained):
        return torch.full_like(n, self.value)


_Temperatures = LogTemperature | SSMaxTemperature | FloorTemperature | ConstantTemperature
AnyTemperature = Annotated[_Temperatures, named_by("kind", _Temperatures)]
