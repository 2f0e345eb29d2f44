"""Positional schemes. Each is one class: what it does, in the hooks of `Position` it overrides, and its options."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from model.linear import Embedding
from model.scaling import AnyScaling
from settings import FrozenConfig, Size

Rotation = tuple[Tensor, Tensor]  # cos and sin


class Position(nn.Module):
    """The scheme `none`, and the seam: what a scheme may contribute, of which this one contributes nothing.

    The first five hooks are functions of the positions alone, called once a pass; None: nothing. What they return holds
    in all layers that the scheme acts in, or is a list with an entry for each layer. Positions are integers counted from
    0; negative ones are padding, where results must be finite too. They are computed in float64 and cast to float32 at
    the end, whatever dtype the model or autocast has. `kept` and `content_bias` are asked in each layer it acts in.
    """

    class Options(FrozenConfig):
        """The keys of `model.position`; those of this class are the options of a scheme that has none."""

        scheme: str
        """name in the registry of model/position.py"""

        def check(self, config) -> None:
            """Raises ValueError where the scheme cannot work with a model of this ModelConfig."""

        def updated(self, changes: dict) -> dict:
            """These options, some of them replaced; ValueError where a trained model cannot do with another."""
            return self.model_dump() | changes

    max_length: int | None = None  # number of positions the scheme knows; None: any
    shift_invariant: bool = True  # whether logits stay the same when all positions grow by as much
    layout: str = "half"  # of the channels that a rotation pairs, see `rotate`
    learning_rate_scale: float = 1.0  # learning rate of the scheme's parameters against that of the model
    measured: dict[str, str] = {}  # what metrics() gives, by name, in words

    def __init__(self, config):
        """config: the ModelConfig, whose file imports this one; its `position` are the Options."""
        super().__init__()
        self.config, self.options = config, config.position

    def acts_in(self, layer: int) -> bool:
        """Whether all but the embedding reach this layer, counted from 0."""
        return True

    def embedding(self, positions: Tensor) -> Tensor | None:
        """(…, T, hidden_size), added to the token embeddings of positions (…, T)."""

    def rotation(self, positions: Tensor) -> Rotation | list[Rotation] | None:
        """(cos, sin), each (…, T, pairs), by which queries and keys at positions (…, T) are turned, see `rotate`."""

    def key_rotation(self, positions: Tensor) -> Rotation | list[Rotation] | None:
        """As `rotation`, if keys turn differently from queries; None: they turn alike."""

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | list[Tensor] | None:
        """(…, heads or 1, Tq, Tk), added to the scores after 1/√d, from (…, Tq) and (…, Tk)."""

    def temperature(self, positions: Tensor) -> Tensor | list[Tensor] | None:
        """(…, heads or 1, T), by which queries at positions (…, T) are multiplied."""

    def kept(self, layer: int, x: Tensor) -> tuple[Tensor, ...]:
        """What the cache keeps of each token besides key and value: tensors (B, any, T, any) from x (B, T, hidden_size).

        Numbers of the token alone, no sums over earlier ones: then a cache can be set back, and padding does no harm.
        """
        return ()

    def content_bias(
        self, layer: int, x: Tensor, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *kept: Tensor
    ) -> Tensor:
        """(B, heads, Tq, Tk), added to the scores after 1/√d, from what the layer's attention sees.

        The queries are those of the last Tq of the Tk tokens, and x (B, Tq, hidden_size) is their normed input.
        q (B, heads, Tq, d) and k (B, key heads, Tk, d) are rotated if the scheme rotates. kept: what `kept` returned, of
        all Tk tokens. Whatever the dtype of the model or autocast, both hooks get and compute float32 or better.
        """

    @classmethod
    def overrides(cls, *hooks: str) -> bool:
        """Whether the scheme has one of these hooks."""
        return any(getattr(cls, hook) is not getattr(Position, hook) for hook in hooks)

    def metrics(self) -> dict:
        """The series of `measured`, for metrics.jsonl: each a number, a list of numbers, or such a list per layer."""
        return {}

    def rope_parameters(self) -> dict | None:
        """`rope_parameters` of `transformers`, {} where nothing turns; None where it has no counterpart."""
        return {} if type(self) is Position else None

    def _apply(self, fn, recurse=True):
        # A model's .bfloat16() reaches its position parameters too; they follow to the device, but not below float32.
        def keep_precise(tensor):
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype.itemsize < 4 else moved

        return super()._apply(keep_precise, recurse)


def ladder(dim: int, base: float, device=None) -> Tensor:
    """(dim / 2,) float64: θ_i = base^(−2i / dim) in radians per token; θ_0 = 1 turns fastest."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


def phases(positions: Tensor, theta: Tensor) -> Tensor:
    """(…, n) float64 angles in radians: each of positions (…) times each of theta (n,)."""
    return positions.to(theta.device, torch.float64)[..., None] * theta


def phase_device(positions: Tensor) -> torch.device:
    """Where angles of these positions can be computed: Apple GPUs lack float64."""
    return torch.device("cpu") if positions.device.type == "mps" else positions.device


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(…, 1, Tq, Tk) query minus key position, from (…, Tq) and (…, Tk); the dimension of 1 is for the heads."""
    return q_positions[..., None, :, None] - k_positions[..., None, None, :]


class Sinusoidal(Position):
    """(sin pθ_0, cos pθ_0, sin pθ_1, …) over the width of the model. Vaswani et al. 2017, section 3.5.

    Unless told otherwise it has the root mean square of the token embeddings it is added to. As printed (0.71)
    it would drown embeddings of standard deviation 0.02.
    """

    class Options(Position.Options):
        base: Annotated[float, Field(gt=1)] = 10000.0
        """θ_i = base^(−2i / hidden_size), radians per token"""
        rms: PositiveFloat | None = None
        """root mean square of the added vectors; null: that of the token embeddings; 0.7071: as printed in the paper"""

        def check(self, config):
            if config.hidden_size % 2:
                raise ValueError(f"sinusoidal needs an even model.hidden_size, got {config.hidden_size}")

    shift_invariant = False

    def embedding(self, positions):
        phi = phases(positions, ladder(self.config.hidden_size, self.options.base, phase_device(positions)))
        waves = torch.stack((phi.sin(), phi.cos()), dim=-1).flatten(-2)
        scale = math.sqrt(2) * (self.options.rms or self.config.initializer_range)
        return (scale * waves).float().to(positions.device)


class Learned(Position):
    """A trained vector for each position. Devlin et al. 2019 (BERT); Radford et al. 2019 (GPT-2).

    Initialized as the token embeddings are, so that neither drowns the other. There is none past the table's end.
    """

    class Options(Position.Options):
        max_length: Size | None = None
        """rows of the table; a position past its end is an error. null: max_position_embeddings"""

        def check(self, config):
            length, needed = self.max_length, config.max_position_embeddings
            if length is not None and length < needed:
                raise ValueError(f"position.max_length {length} is less than max_position_embeddings {needed}")

    shift_invariant = False

    def __init__(self, config):
        super().__init__(config)
        self.max_length = self.options.max_length or config.max_position_embeddings
        self.table = Embedding(self.max_length, config.hidden_size)

    def embedding(self, positions):
        return self.table(positions.clamp(min=0))  # padding, at negative positions, is seen by nobody


class InLayers(Position):
    """A scheme that acts inside the layers, in all of them or in some."""

    class Options(Position.Options):
        every: PositiveInt | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = 1
        """k: acts in every k-th layer, that is k − 1, 2k − 1 …, counted from 0; or the list of layers it acts in"""

        def check(self, config):
            farthest = max(self.every) if isinstance(self.every, tuple) else self.every - 1
            if farthest > (last := config.num_hidden_layers - 1):
                raise ValueError(f"position.every: expected layers up to {last}, got {farthest}")

    def acts_in(self, layer):
        every = self.options.every
        return layer in every if isinstance(every, tuple) else (layer + 1) % every == 0


class Rotary(InLayers):
    """Pair i of each query and key head is turned by the angle mθ_i at position m. Su et al. 2021, equation 15."""

    class Options(InLayers.Options):
        base: Annotated[float, Field(gt=1)] = 10000.0
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
        """null, or {rope_type: linear | ntk | yarn | llama3, factor: s, …}"""

        def check(self, config):
            super().check(config)
            if self.turning_pairs(config) < 1:
                raise ValueError(
                    f"position.fraction {self.fraction} of head_dim {config.head_dim} leaves no pair to turn"
                )
            if self.scaling and (pairs := self.rotary_dim(config) // 2) < (least := self.scaling.least_pairs):
                raise ValueError(f"position.scaling {self.scaling.rope_type} needs {least} pairs or more, got {pairs}")

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

    def theta(self, device):
        options, dim = self.options, self.options.rotary_dim(self.config)
        theta, factor = ladder(dim, options.base, device), 1.0
        if options.scaling:
            theta, factor = options.scaling.stretched(theta, dim, options.base, self.original_length)
        theta[options.turning_pairs(self.config) :] = 0.0  # p-RoPE: the slowest pairs stand still (Barbero et al. 2024)
        return theta, factor

    @property
    def original_length(self) -> int:
        """L of the scaling: tokens of context that the model was trained on without it."""
        return self.options.scaling.original_max_position_embeddings or self.config.max_position_embeddings

    def rope_parameters(self):
        options, dim = self.options, self.config.head_dim
        pairs = options.turning_pairs(self.config)
        if type(self) is not Rope or options.layout != "half" or (pairs < dim // 2 and options.partial != "p_rope"):
            return None  # its Llama would silently rotate whole heads in halves, and know nothing of a subclass
        rope = {"rope_theta": options.base, "rope_type": "default"}
        if options.scaling:
            rope = options.scaling.rope_parameters(dim, options.base, self.original_length)
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
        learning_rate_multiplier: PositiveFloat = 1.0
        """learning rate of log θ against that of the model"""

    measured = {"theta_drift": "|Δ log θ| of each pair"}

    def __init__(self, config):
        super().__init__(config)
        self.learning_rate_scale = self.options.learning_rate_multiplier
        layers = (config.num_hidden_layers,) if self.options.per_layer else ()
        self.log_theta_drift = nn.Parameter(torch.zeros(*layers, config.head_dim // 2))

    def theta(self, device):
        start = ladder(self.config.head_dim, self.options.base, device)
        return start * self.log_theta_drift.to(device, torch.float64).exp(), 1.0

    def metrics(self):
        return {"theta_drift": self.log_theta_drift.detach().abs().tolist()}


class Alibi(InLayers):
    """A penalty that grows with the distance, at a slope of its own for each head. Press et al. 2022, section 3."""

    @staticmethod
    def slopes(num_heads: int) -> list[float]:
        """2^(−8h / H) for H heads, a power of two; else those of the next lower one, then every other of its double."""
        power = 2 ** int(math.log2(num_heads))
        of_power, of_double = ([2 ** (-8 * h / n) for h in range(1, n + 1)] for n in (power, 2 * power))
        return of_power + of_double[0::2][: num_heads - power]

    def bias(self, q_positions, k_positions):
        slopes = torch.tensor(self.slopes(self.config.num_attention_heads), device=q_positions.device)
        return -slopes[:, None, None] * distances(q_positions, k_positions)


class T5(InLayers):
    """A trained bias for each head and bucket of distances, shared by all layers. Raffel et al. 2020, section 2.1.

    Unlike T5 the scores keep their 1/√d.
    """

    class Options(InLayers.Options):
        num_buckets: Annotated[int, Field(ge=4, lt=2**31, multiple_of=2)] = 32
        """half of them for single distances, half for ranges that grow with the distance"""
        max_distance: Size = 128
        """distances from here on share the last bucket"""

        def check(self, config):
            super().check(config)
            if self.max_distance <= self.num_buckets // 2:
                raise ValueError(f"position.max_distance {self.max_distance} is not above half of position.num_buckets")

    def __init__(self, config):
        super().__init__(config)
        self.table = Embedding(self.options.num_buckets, config.num_attention_heads)

    @staticmethod
    def buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
        """Bucket of each distance ≥ 0: its own for those below num_buckets / 2, then logarithmic ranges."""
        exact = num_buckets // 2
        log_ratio = (distance.clamp(min=1).double() / exact).log() / math.log(max_distance / exact)
        ranges = exact + (log_ratio * (num_buckets - exact)).long()
        return torch.where(distance < exact, distance, ranges.clamp(max=num_buckets - 1))

    def bias(self, q_positions, k_positions):
        distance = (q_positions[..., :, None] - k_positions[..., None, :]).clamp(min=0)  # the future is masked anyway
        return self.table(self.buckets(distance, self.options.num_buckets, self.options.max_distance)).movedim(-1, -3)


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
    "learned_theta": LearnedTheta,
    "alibi": Alibi,
    "t5": T5,
}


def position_options(value) -> Position.Options:
    """The options of a scheme, from its name or from a mapping {scheme: name, option: value …}; ValueError if none."""
    if isinstance(value, Position.Options):
        return value
    value = {"scheme": value} if isinstance(value, str) else value
    if not isinstance(value, dict) or not isinstance(value.get("scheme", "rope"), str):
        raise ValueError("expected the name of a scheme, or a mapping of its options")
    value = {"scheme": "rope", **value}
    if value["scheme"] not in POSITIONS:
        raise ValueError(f"unknown scheme {value['scheme']!r}, known: {', '.join(POSITIONS)}")
    return POSITIONS[value["scheme"]].Options.model_validate(value)


def build_position(config) -> Position:
    """The module of the scheme that `config.position`, of a ModelConfig, names."""
    return POSITIONS[config.position.scheme](config)
