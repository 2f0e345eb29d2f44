"""Positional schemes. Each is one class that overrides one of the three hooks of `Position`."""

import math

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.linear import Embedding
from model.scaling import SCALINGS


class Position(nn.Module):
    """The scheme `none`, and the seam: the three things a scheme may contribute, of which this one does nothing.

    Positions are integers counted from 0; a negative one marks padding. Results are functions of the positions
    alone: they are computed in float64 and cast to float32 at the end, whatever dtype the model or autocast has.
    """

    max_length: int | None = None  # number of positions the scheme knows; None: any
    per_layer: bool = False  # whether rotation() has a leading dimension of num_hidden_layers
    measured: dict[str, str] = {}  # name: words for each series that metrics() gives

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

    def metrics(self) -> dict:
        """What is worth a look during training, as JSON-ready values for the rows of metrics.jsonl."""
        return {}

    def _apply(self, fn, recurse=True):
        # A model's .bfloat16() reaches its position parameters too; they follow to the device but stay float32.
        def keep_dtype(tensor):
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)


def ladder(dim: int, base: float, device=None) -> Tensor:
    """(dim / 2,) float64: θ_i = base^(−2i / dim) in radians per token; θ_0 = 1 turns fastest."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


def phases(positions: Tensor, theta: Tensor) -> Tensor:
    """(…, n) float64 angles in radians: each of positions (…) times each of theta (n,)."""
    return positions.to(theta.device, torch.float64)[..., None] * theta


def phase_device(positions: Tensor) -> torch.device:
    """Where angles of these positions can be computed: Apple's GPUs have no float64."""
    return torch.device("cpu") if positions.device.type == "mps" else positions.device


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
        phi = phases(positions, ladder(self.hidden_size, self.base, phase_device(positions)))
        waves = torch.stack((phi.sin(), phi.cos()), dim=-1).flatten(-2)
        return (self.scale * waves).float().to(positions.device)


class LearnedPosition(Position):
    """A trained vector for each position. Devlin et al. 2019 (BERT); Radford et al. 2019 (GPT-2).

    Initialized as the token embeddings are, so that neither drowns the other. There is none past the table's end.
    """

    def __init__(self, config):
        super().__init__(config)
        self.max_length = config.position.max_length or config.max_position_embeddings
        self.table = Embedding(self.max_length, config.hidden_size)

    def embedding(self, positions):
        return self.table(positions.clamp(min=0))  # padding, at negative positions, is seen by nobody


class RotaryPosition(Position):
    """Pair i of each query and key head is turned by the angle mθ_i at position m. Su et al. 2021, equation 15."""

    def __init__(self, config):
        super().__init__(config)
        self.config = config

    def theta(self, device) -> tuple[Tensor, float]:
        """(pairs,) float64 radians per token, and the factor on cos and sin, after partial rotation and scaling."""
        options = self.config.position
        dim = options.rotary_dim(self.config)
        theta, factor = ladder(dim, options.base, device), 1.0
        if options.scaling is not None:
            length = options.scaling.original_max_position_embeddings or self.config.max_position_embeddings
            scale = SCALINGS[options.scaling.rope_type]
            theta, factor = scale(theta, options.scaling, dim, options.base, length)
        theta[options.turning_pairs(self.config) :] = 0.0  # p-RoPE: the slowest pairs stand still (Barbero et al. 2024)
        return theta, factor

    def rotation(self, positions):
        theta, factor = self.theta(phase_device(positions))
        phi = torch.stack([phases(positions, row) for row in theta]) if self.per_layer else phases(positions, theta)
        return (factor * phi.cos()).float().to(positions.device), (factor * phi.sin()).float().to(positions.device)


class LearnedThetaPosition(RotaryPosition):
    """Rotary embeddings whose θ are trained, from the fixed ladder on.

    The parameter is Δ log θ, the drift from the ladder: in the logarithm no step can turn a frequency's sign,
    and the start is exactly that of `rope`.
    """

    measured = {"theta_drift": "|Δ log θ| of each pair"}

    def __init__(self, config):
        super().__init__(config)
        self.per_layer = config.position.per_layer
        layers = (config.num_hidden_layers,) if self.per_layer else ()
        self.log_theta_drift = nn.Parameter(torch.zeros(*layers, config.head_dim // 2))

    def theta(self, device):
        start = ladder(self.config.head_dim, self.config.position.base, device)
        return start * self.log_theta_drift.to(device, torch.float64).exp(), 1.0

    def metrics(self):
        return {"theta_drift": self.log_theta_drift.detach().abs().tolist()}


class AlibiPosition(Position):
    """A penalty that grows with the distance, at a slope of its own for each head. Press et al. 2022, section 3."""

    def __init__(self, config):
        super().__init__(config)
        self.num_heads = config.num_attention_heads

    @staticmethod
    def slopes(num_heads: int) -> list[float]:
        """2^(−8h / H) for H heads, a power of two; else those of the next lower one, then every other of its double."""
        power = 2 ** int(math.log2(num_heads))
        of_power, of_double = ([2 ** (-8 * h / n) for h in range(1, n + 1)] for n in (power, 2 * power))
        return of_power + of_double[0::2][: num_heads - power]

    def bias(self, q_positions, k_positions):
        slopes = torch.tensor(self.slopes(self.num_heads), device=q_positions.device)
        distance = q_positions[..., None, :, None] - k_positions[..., None, None, :]
        return -slopes[:, None, None] * distance


class T5Position(Position):
    """A trained bias for each head and bucket of distances, shared by all layers. Raffel et al. 2020, section 2.1.

    Unlike T5 the scores keep their 1/√d.
    """

    def __init__(self, config):
        super().__init__(config)
        self.num_buckets, self.max_distance = config.position.num_buckets, config.position.max_distance
        self.table = Embedding(self.num_buckets, config.num_attention_heads)

    @staticmethod
    def buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        """Bucket of each distance ≥ 0: its own for those below num_buckets / 2, then logarithmic ranges."""
        exact = num_buckets // 2
        log_ratio = (distance.clamp(min=1).double() / exact).log() / math.log(max_distance / exact)
        ranges = exact + (log_ratio * (num_buckets - exact)).long()
        return torch.where(distance < exact, distance, ranges.clamp(max=num_buckets - 1))

    def bias(self, q_positions, k_positions):
        distance = (q_positions[..., :, None] - k_positions[..., None, :]).clamp(min=0)  # the future is masked anyway
        return self.table(self.buckets(distance, self.num_buckets, self.max_distance)).movedim(-1, -3)


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": SinusoidalPosition,
    "learned": LearnedPosition,
    "rope": RotaryPosition,
    "learned_theta": LearnedThetaPosition,
    "alibi": AlibiPosition,
    "t5": T5Position,
}


def build_position(config: ModelConfig) -> Position:
    """The module of the scheme that `config.position` names."""
    return POSITIONS[config.position.scheme](config)
