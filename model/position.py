"""Positional schemes. Each is one class that overrides one of the three hooks of `Position`."""

import math

import torch
from torch import Tensor, nn

from model.config import ModelConfig


class Position(nn.Module):
    """The scheme `none`, and the seam: what a scheme may contribute, and that this one contributes nothing.

    Positions are integers counted from 0; a negative one marks padding. Results are functions of the positions
    alone: they are computed in float64 and cast to float32 at the end, whatever dtype the model or autocast has.
    """

    max_length: int | None = None  # number of positions the scheme knows; None: any

    def __init__(self, config: ModelConfig):
        super().__init__()

    def embedding(self, positions: Tensor) -> Tensor | None:
        """(…, T, hidden_size), to be added to the token embeddings of positions (…, T)."""
        return None

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """(cos, sin), each (…, T, rotary_dim / 2), for rotating queries and keys at positions (…, T)."""
        return None

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """(…, heads, Tq, Tk), to be added to the scores after 1/√d, from (…, Tq) and (…, Tk)."""
        return None

    def _apply(self, fn, recurse=True):
        # A model's .bfloat16() reaches its position parameters too; they follow to the device but stay float32.
        def keep_dtype(tensor):
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)


def log_inverse_frequencies(dim: int, base: float, device=None) -> Tensor:
    """(dim / 2,) float64: log θ_i = −(2i / dim) log base. θ_0 = 1 rad per token turns fastest."""
    return torch.arange(0, dim, 2, dtype=torch.float64, device=device) * (-math.log(base) / dim)


def angles(positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """(…, T, n) float64 angles in radians, of (…, T) positions and (n,) radians per token."""
    return positions.to(inverse_frequencies.device, torch.float64)[..., None] * inverse_frequencies


def angle_device(device: torch.device) -> torch.device | str:
    """Where the angles of a model on `device` are computed: Apple's GPUs have no float64."""
    return "cpu" if device.type == "mps" else device


class SinusoidalPosition(Position):
    """(sin pθ_0, cos pθ_0, sin pθ_1, …) over the width of the model. Vaswani et al. 2017, section 3.5.

    Unless told otherwise it has the root mean square of the token embeddings it is added to. As printed (0.71)
    it would drown embeddings of standard deviation 0.02.
    """

    def __init__(self, config):
        super().__init__(config)
        self.hidden_size, self.base = config.hidden_size, config.position.base
        self.scale = math.sqrt(2) * (config.position.rms or config.initializer_range)

    def embedding(self, positions):
        inverse_frequencies = log_inverse_frequencies(
            self.hidden_size, self.base, angle_device(positions.device)
        ).exp()
        phases = angles(positions, inverse_frequencies)
        waves = torch.stack((phases.sin(), phases.cos()), dim=-1).flatten(-2)
        return (self.scale * waves).float().to(positions.device)


class RotaryPosition(Position):
    """Pair i of each query and key head is turned by the angle mθ_i at position m. Su et al. 2021, equation 15."""

    def __init__(self, config):
        super().__init__(config)
        self.head_dim, self.base = config.head_dim, config.position.base

    def log_theta(self, device=None) -> Tensor:
        """(head_dim / 2,) float64 logarithms of the radians per token of each pair."""
        return log_inverse_frequencies(self.head_dim, self.base, device)

    def rotation(self, positions):
        phases = angles(positions, self.log_theta(angle_device(positions.device)).exp())
        return phases.cos().float().to(positions.device), phases.sin().float().to(positions.device)


class LearnedThetaPosition(RotaryPosition):
    """Rotary embeddings whose θ are trained, from the fixed ladder on.

    The parameter is Δ log θ, the drift from the ladder: in the logarithm no step can turn a frequency's sign,
    and the start is exactly that of `rope`.
    """

    def __init__(self, config):
        super().__init__(config)
        self.log_theta_drift = nn.Parameter(torch.zeros(config.head_dim // 2))

    def log_theta(self, device=None):
        return super().log_theta(device) + self.log_theta_drift.to(device, torch.float64)


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": SinusoidalPosition,
    "rope": RotaryPosition,
    "learned_theta": LearnedThetaPosition,
}


def build_position(config: ModelConfig) -> Position:
    """The module of the scheme that `config.position` names."""
    return POSITIONS[config.position.scheme](config)
