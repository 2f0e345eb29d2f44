"""Rotary frequencies for sequences longer than those trained on: each method is one class, its options the fields.

In all of them s is `factor`, L the length trained without scaling, d the rotary dimension, twice the number of pairs.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from settings import FrozenConfig, Positive, Single, Size, named_by


class Scaling(FrozenConfig):
    """Stretches rotary frequencies, so that a model reaches past the length it was trained on."""

    factor: Annotated[Single, Field(ge=1)]
    """s: how many times longer"""
    original_max_position_embeddings: Size | None = None
    """L: the length trained without scaling; null: max_position_embeddings"""

    def check(self, dim: int, base: float, length: int) -> None:
        """Raises ValueError where the method has no meaning for the ladder of d = dim and base, L = length."""

    def stretched(self, theta: Tensor, dim: int, base: float, length: int) -> tuple[Tensor, float]:
        """The new θ, (d / 2,) float64, and the factor on cos and sin, for the ladder θ of d = dim, base, L = length."""
        raise NotImplementedError

    def rope_parameters(self, dim: int, base: float, length: int) -> dict:
        """`rope_parameters` with which `transformers` computes the same."""
        return {"rope_theta": base, **self.model_dump(exclude_none=True), "original_max_position_embeddings": length}


class LinearScaling(Scaling):
    """θ / s: position interpolation (Chen et al. 2023, equation 4)."""

    rope_type: Literal["linear"]
    """name of the method"""

    def stretched(self, theta, dim, base, length):
        return theta / self.factor, 1.0

    def rope_parameters(self, dim, base, length):
        return {"rope_theta": base, "rope_type": "linear", "factor": self.factor}


class NtkScaling(Scaling):
    """The ladder of base · s^(d / (d − 2)): the fastest pair keeps θ, the slowest gets θ / s (bloc97, 2023)."""

    rope_type: Literal["ntk"]
    """name of the method"""

    def check(self, dim, base, length):
        if dim < 4:
            raise ValueError(f"position.scaling ntk needs 2 pairs or more, got {dim // 2}")

    def stretched(self, theta, dim, base, length):
        pair = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
        return theta * self.factor ** (-2 * pair / (dim - 2)), 1.0

    def rope_parameters(self, dim, base, length):
        return {"rope_theta": base * self.factor ** (dim / (dim - 2)), "rope_type": "default"}


class YarnScaling(Scaling):
    """Fast pairs keep θ, slow ones get θ / s, with a ramp over the pairs between (Peng et al. 2023, section 3.2).

    As in the authors' code, the ramp is linear in the pair index, between whole pairs.
    """

    rope_type: Literal["yarn"]
    """name of the method"""
    beta_fast: Positive = 32.0
    """pairs with more turns than this within L keep θ"""
    beta_slow: Positive = 1.0
    """pairs with fewer turns than this within L get θ / s"""
    attention_factor: Positive | None = None
    """multiplies cos and sin; null: 0.1 ln s + 1"""

    @model_validator(mode="after")
    def _ramp_has_a_direction(self):
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast} must be above beta_slow {self.beta_slow}")
        return self

    def ramp(self, dim: int, base: float, length: int) -> tuple[int, int]:
        """The last pair that keeps θ, and the first that gets θ / s; arguments as of `check`."""

        def pair_with_turns(turns: float) -> float:
            return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = math.floor(pair_with_turns(self.beta_fast)), math.ceil(pair_with_turns(self.beta_slow))
        return max(low, 0), min(high, dim - 1)

    def check(self, dim, base, length):
        low, high = self.ramp(dim, base, length)
        if low > high:  # a ramp downwards, which `transformers` and llama.cpp each make something else of
            turns = length / (2 * math.pi)
            raise ValueError(
                f"position.scaling yarn: beta_slow {self.beta_slow:.6g} must be below {turns * base ** (2 / dim):.6g} "
                f"and beta_fast {self.beta_fast:.6g} above {turns / base**2:.6g}, for L {length} and base {base:.6g}"
            )

    def stretched(self, theta, dim, base, length):
        low, high = self.ramp(dim, base, length)
        pair = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
        slow = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        factor = self.attention_factor or 0.1 * math.log(self.factor) + 1
        return theta * (1 - slow) + theta / self.factor * slow, factor


class Llama3Scaling(Scaling):
    """Long waves get θ / s, short ones keep θ, with a blend between (Llama 3.1, 2024)."""

    rope_type: Literal["llama3"]
    """name of the method"""
    low_freq_factor: Positive = 1.0
    """waves longer than L / this get θ / s"""
    high_freq_factor: Positive = 4.0
    """waves shorter than L / this keep θ"""

    @model_validator(mode="after")
    def _blend_has_a_direction(self):
        low, high = self.low_freq_factor, self.high_freq_factor
        if high <= low:
            raise ValueError(f"high_freq_factor {high} must be above low_freq_factor {low}")
        return self

    def stretched(self, theta, dim, base, length):
        turns = length * theta / (2 * math.pi)  # within L
        fast = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return theta * fast + theta / self.factor * (1 - fast), 1.0


class LongRopeScaling(Scaling):
    """θ_i / λ_i, cos and sin times √(1 + ln s / ln L), with λ from a search that is not done here (Ding et al. 2024)."""

    rope_type: Literal["longrope"]
    """name of the method"""
    long_factor: tuple[Positive, ...]
    """λ of each pair, the fastest first; they hold at all lengths, also at those below L"""
    attention_factor: Positive | None = None
    """multiplies cos and sin; null: √(1 + ln s / ln L)"""

    def check(self, dim, base, length):
        if len(self.long_factor) != dim // 2:
            raise ValueError(f"position.scaling.long_factor: expected {dim // 2} numbers, got {len(self.long_factor)}")

    def on_waves(self, length: int) -> float:
        """The factor on cos and sin, for L = length."""
        return self.attention_factor or math.sqrt(1 + math.log(self.factor) / math.log(max(2, length)))

    def stretched(self, theta, dim, base, length):
        return theta / theta.new_tensor(self.long_factor), self.on_waves(length)

    def rope_parameters(self, dim, base, length):
        factors = {"short_factor": list(self.long_factor), "long_factor": list(self.long_factor)}
        # said outright, as versions differ in where they look for L
        return super().rope_parameters(dim, base, length) | factors | {"attention_factor": self.on_waves(length)}


_Scalings = LinearScaling | NtkScaling | YarnScaling | Llama3Scaling | LongRopeScaling
AnyScaling = Annotated[_Scalings, named_by("rope_type", _Scalings)]
