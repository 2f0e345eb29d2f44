"""The seam: what a positional scheme may contribute, and what schemes share."""

from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from model.temperature import AnyTemperature
from settings import FrozenConfig, Positive

Rotation = tuple[Tensor, Tensor]  # cos and sin


class Position(nn.Module):
    """The scheme `none`, and the seam: what a scheme may contribute, of which this one contributes nothing.

    The first five hooks are functions of the positions alone, called once a pass; of a long text `bias` is called for the
    last query alone where it `is_toeplitz`, else for each block of queries. None: nothing. What they return
    holds in all layers that the scheme acts in, or is a list with an entry for each layer. Positions are integers counted
    from 0, in each document of a row; negative ones are padding, where results must be finite too. Those of all rows at
    once, (T,), are consecutive. Angles and temperatures are computed in float64 and cast to float32, and no result is in
    less, whatever dtype the model or autocast has. `features`, `kept`, `shared` and `content_bias` see the content, in
    each layer that the scheme acts in. A parameter has at least one dimension, along which several processes may divide it.
    """

    class Options(FrozenConfig):
        """The keys of `model.position`; those of this class are the options of a scheme that has none."""

        scheme: str
        """name in the registry of model/position"""
        temperature: AnyTemperature | None = None
        """null, or {kind: log | ssmax | floor | constant, …}: a factor on the queries"""
        learning_rate_multiplier: Positive = 1.0
        """learning rate of the scheme's parameters, if it has any, against that of the model"""

        def check(self, config) -> None:
            """Raises ValueError where the scheme cannot work with a model of this ModelConfig."""

        def updated(self, changes: dict) -> dict:
            """These options, some of them replaced; ValueError where a trained model cannot do with another."""
            return self.model_dump() | changes

    max_length: int | None = None  # number of positions the scheme knows; None: any
    shift_invariant: bool = True  # whether logits stay when all positions grow by as much; a temperature aside
    layout: str = "half"  # of the channels that a rotation pairs, see `rotate`
    measured: dict[str, str] = {}  # what metrics() gives, by name, in words

    def __init__(self, config):
        """config: the ModelConfig, whose file imports this one; its `position` are the Options."""
        super().__init__()
        self.config, self.options = config, config.position
        sharpness = self.options.temperature and self.options.temperature.initial(config)
        self.register_parameter("sharpness", None if sharpness is None else nn.Parameter(sharpness))

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

    def is_toeplitz(self, positions: Tensor) -> bool:
        """Whether the bias of queries at consecutive positions (T,) depends on the distance alone."""
        return self.shift_invariant

    def temperature(self, positions: Tensor) -> Tensor | list[Tensor] | None:
        """(…, heads or 1, T), by which queries at positions (…, T) are multiplied: the option, unless overridden."""
        if self.options.temperature is None:
            return None
        device = phase_device(positions)
        n = positions.to(device, torch.float64).clamp(min=0)[..., None, :] + 1

        def cast(factor):
            return factor.float().to(positions.device)

        found = self.options.temperature.factor(n, self.config, self.sharpness)
        return [cast(each) for each in found] if isinstance(found, list) else cast(found)

    def features(self, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (B, T, heads, d) → (B, T, heads, any) before they turn; scores stay divided by √d."""
        return q, k

    def kept(self, layer: int, x: Tensor) -> tuple[Tensor, ...]:
        """What the cache keeps of each token besides key and value: tensors (B, any, T, any) from x (B, T, hidden_size).

        Numbers of the token alone, no sums over earlier ones: then a cache can be set back, and padding does no harm.
        """
        return ()

    def shared(
        self, layer: int, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *kept: Tensor
    ) -> tuple[Tensor, ...]:
        """What the `content_bias` of all blocks of queries needs, computed once for all of q and k: it gets it whole."""
        return ()

    def content_bias(
        self, layer: int, x: Tensor, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *others: Tensor
    ) -> Tensor:
        """A new tensor (B, heads, Tq, Tk), added to the scores after 1/√d, from what the layer's attention sees.

        The queries are those of the last Tq of the Tk tokens, and x (B, Tq, hidden_size) is their normed input.
        q (B, heads, Tq, d) and k (B, key heads, Tk, d) are rotated if the scheme rotates. others: what `kept` returned,
        of all Tk tokens, and `shared`. Keys of other documents, which the mask hides, may have any positions: what comes
        later is told by the order. Whatever the dtype of the model or autocast, these hooks get and compute float32 or
        better.
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
