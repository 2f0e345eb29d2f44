"""Rotary frequencies for sequences longer than those trained on.

Each method is a function of (θ in float64 (n,), its options, the rotary dimension d = 2n, the base, the length L
trained without scaling) that returns the new θ and the factor by which cos and sin are multiplied.
"""

import math

import torch
from torch import Tensor

from model.config import ScalingConfig


def linear(theta: Tensor, scaling: ScalingConfig, dim: int, base: float, length: int) -> tuple[Tensor, float]:
    """θ / s. Chen et al. 2023, equation 4."""
    return theta / scaling.factor, 1.0


def ntk(theta: Tensor, scaling: ScalingConfig, dim: int, base: float, length: int) -> tuple[Tensor, float]:
    """The ladder of base' = base · s^(d / (d − 2)): the fastest pair keeps θ, the slowest gets θ / s. bloc97, 2023."""
    pair = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
    return theta * scaling.factor ** (-2 * pair / (dim - 2)), 1.0


def yarn(theta: Tensor, scaling: ScalingConfig, dim: int, base: float, length: int) -> tuple[Tensor, float]:
    """A ramp over the pairs, from θ for fast ones to θ / s for slow ones. Peng et al. 2023, section 3.2.

    As in the authors' code, the ramp is linear in the pair index, between whole pairs.
    """

    def pair_with_turns(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_with_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_with_turns(scaling.beta_slow)), dim - 1)
    pair = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
    slow = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    factor = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
    return theta * (1 - slow) + theta / scaling.factor * slow, factor


def llama3(theta: Tensor, scaling: ScalingConfig, dim: int, base: float, length: int) -> tuple[Tensor, float]:
    """θ / s for waves longer than L / low, θ for those shorter than L / high, a blend between. Llama 3.1, 2024."""
    waves = length * theta / (2 * math.pi)  # turns within L
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    fast = ((waves - low) / (high - low)).clamp(0, 1)
    return theta * fast + theta / scaling.factor * (1 - fast), 1.0


SCALINGS = {"linear": linear, "ntk": ntk, "yarn": yarn, "llama3": llama3}
