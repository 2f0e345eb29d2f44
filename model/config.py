"""What a model is: its shape, and the options of its positional scheme."""

import math
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from settings import FrozenConfig


class PositionConfig(FrozenConfig):
    """Options of a scheme that has none, and the base of those that have some."""

    scheme: str
    """name in the registry of model/position.py"""

    @property
    def pair_layout(self) -> str:
        """Which channels form a pair where the scheme rotates: half or interleaved."""
        return "half"

    @property
    def learning_rate_scale(self) -> float:
        """Learning rate of the scheme's own parameters against that of the model."""
        return 1.0

    def acts_in(self, layer: int) -> bool:
        """Whether the scheme's rotation and bias reach this layer, counted from 0."""
        return True

    def check(self, model: "ModelConfig") -> None:
        """Raises ValueError where the scheme cannot work with the model's shape."""

    def rope_parameters(self, model: "ModelConfig") -> dict | None:
        """`rope_parameters` of `transformers`, {} where nothing turns; None where it has no counterpart."""
        return None


class NoneConfig(PositionConfig):
    """No positions."""

    def rope_parameters(self, model):
        return {}


class SinusoidalConfig(PositionConfig):
    """Options of the fixed sinusoids of Vaswani et al. 2017."""

    base: Annotated[float, Field(gt=1)] = 10000.0
    """θ_i = base^(−2i / hidden_size), radians per token"""
    rms: PositiveFloat | None = None
    """root mean square of the added vectors; null: that of the token embeddings; 0.7071: as printed in the paper"""

    def check(self, model):
        if model.hidden_size % 2:
            raise ValueError(f"sinusoidal needs an even model.hidden_size, got {model.hidden_size}")


class LearnedConfig(PositionConfig):
    """Options of a learned table of absolute positions (BERT, GPT-2)."""

    max_length: PositiveInt | None = None
    """rows of the table; a position past its end is an error. null: max_position_embeddings"""

    def check(self, model):
        if self.max_length is not None and self.max_length < model.max_position_embeddings:
            raise ValueError(
                f"position.max_length {self.max_length} is less than max_position_embeddings "
                f"{model.max_position_embeddings}"
            )


class LayeredConfig(PositionConfig):
    """Options of a scheme that acts inside the layers, in all of them or in some."""

    every: PositiveInt | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = 1
    """k: acts in every k-th layer, that is k − 1, 2k − 1 …, counted from 0; or the list of layers it acts in"""

    def acts_in(self, layer):
        return layer in self.every if isinstance(self.every, tuple) else (layer + 1) % self.every == 0

    def check(self, model):
        if (min(self.every) if isinstance(self.every, tuple) else self.every - 1) >= model.num_hidden_layers:
            raise ValueError(f"position.every {self.every} names none of the {model.num_hidden_layers} layers")
        if isinstance(self.every, tuple) and max(self.every) >= model.num_hidden_layers:
            raise ValueError(f"position.every {list(self.every)} goes past layer {model.num_hidden_layers - 1}")


class BiasConfig(LayeredConfig):
    """Options of a scheme that adds a bias to the scores: ALiBi has no others."""

    def check(self, model):
        super().check(model)
        if model.attention != "softmax":
            raise ValueError(f"attention {model.attention!r} has no scores for the bias of position {self.scheme!r}")


class T5Config(BiasConfig):
    """Options of T5's relative position bias (Raffel et al. 2020)."""

    num_buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    """half of them for single distances, half for ranges that grow with the distance"""
    max_distance: PositiveInt = 128
    """distances from here on share the last bucket"""

    def check(self, model):
        super().check(model)
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(f"position.max_distance {self.max_distance} is not above half of position.num_buckets")


class RotaryConfig(LayeredConfig):
    """Options that all rotary schemes share."""

    base: Annotated[float, Field(gt=1)] = 10000.0
    """θ_i = base^(−2i / head_dim), radians per token"""
    layout: Literal["half", "interleaved"] = "half"
    """pairs: channels i and i + d/2 (Hugging Face's Llama), or 2i and 2i + 1 (the paper, Meta's Llama)"""

    @property
    def pair_layout(self):
        return self.layout

    def check(self, model):
        super().check(model)
        if model.head_dim % 2:
            raise ValueError(f"{self.scheme} rotates pairs: model.head_dim must be even, got {model.head_dim}")


class LearnedThetaConfig(RotaryConfig):
    """Options of rotary embeddings with trained θ, from the fixed ladder on."""

    per_layer: bool = False
    """a set of θ for each layer; else one for all"""
    learning_rate_multiplier: PositiveFloat = 1.0
    """learning rate of log θ against that of the model"""

    @property
    def learning_rate_scale(self):
        return self.learning_rate_multiplier


class ScalingConfig(FrozenConfig):
    """Stretches rotary frequencies, so that a model reaches past the length it was trained on."""

    factor: Annotated[float, Field(ge=1)]
    """s: how many times longer"""
    original_max_position_embeddings: PositiveInt | None = None
    """L: the length trained without scaling; null: max_position_embeddings"""


class LinearScalingConfig(ScalingConfig):
    """θ / s: position interpolation (Chen et al. 2023)."""

    rope_type: Literal["linear"]
    """name of the method"""


class NtkScalingConfig(ScalingConfig):
    """base · s^(d / (d − 2)): "NTK-aware" scaling (bloc97, 2023)."""

    rope_type: Literal["ntk"]
    """name of the method"""


class YarnScalingConfig(ScalingConfig):
    """Slow pairs get θ / s, fast ones keep θ, with a ramp between (Peng et al. 2023)."""

    rope_type: Literal["yarn"]
    """name of the method"""
    beta_fast: PositiveFloat = 32.0
    """pairs with more turns than this within L keep θ"""
    beta_slow: PositiveFloat = 1.0
    """pairs with fewer turns than this within L get θ / s"""
    attention_factor: PositiveFloat | None = None
    """multiplies cos and sin; null: 0.1 ln s + 1"""

    @model_validator(mode="after")
    def _ramp_has_a_direction(self):
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast {self.beta_fast} must be above beta_slow {self.beta_slow}")
        return self


class Llama3ScalingConfig(ScalingConfig):
    """Long waves get θ / s, short ones keep θ, with a blend between (Llama 3.1, 2024)."""

    rope_type: Literal["llama3"]
    """name of the method"""
    low_freq_factor: PositiveFloat = 1.0
    """waves longer than L / this get θ / s"""
    high_freq_factor: PositiveFloat = 4.0
    """waves shorter than L / this keep θ"""

    @model_validator(mode="after")
    def _blend_has_a_direction(self):
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor {self.high_freq_factor} must be above low_freq_factor {self.low_freq_factor}"
            )
        return self


AnyScaling = Annotated[
    LinearScalingConfig | NtkScalingConfig | YarnScalingConfig | Llama3ScalingConfig,
    Field(discriminator="rope_type"),
]


class RopeConfig(RotaryConfig):
    """Options of rotary embeddings (Su et al. 2021)."""

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the pairs of a head that turn"""
    partial: Literal["neox", "p_rope"] = "neox"
    """fraction < 1: neox spreads the whole ladder over the first channels, p_rope stops its slowest pairs"""
    scaling: AnyScaling | None = None
    """null, or {rope_type: linear | ntk | yarn | llama3, factor: s, …}"""

    def check(self, model):
        super().check(model)
        if self.turning_pairs(model) < 1:
            raise ValueError(f"position.fraction {self.fraction} of head_dim {model.head_dim} leaves no pair to turn")
        if isinstance(self.scaling, NtkScalingConfig) and self.rotary_dim(model) == 2:
            raise ValueError("position.scaling ntk stretches the slow pairs against the fastest: it needs two or more")

    def turning_pairs(self, model: "ModelConfig") -> int:
        """Pairs of a head that turn."""
        return int(round(self.fraction * model.head_dim / 2, 9))

    def rotary_dim(self, model: "ModelConfig") -> int:
        """Channels that the ladder is laid over."""
        return 2 * self.turning_pairs(model) if self.partial == "neox" else model.head_dim

    def rope_parameters(self, model):
        pairs, dim = self.turning_pairs(model), model.head_dim
        if self.layout != "half" or (pairs < dim // 2 and self.partial != "p_rope"):
            return None  # its Llama would silently rotate whole heads in halves
        rope = {"rope_theta": self.base, "rope_type": "default"}
        if isinstance(self.scaling, NtkScalingConfig):  # which is nothing but another base
            rope["rope_theta"] *= self.scaling.factor ** (dim / (dim - 2))
        elif isinstance(self.scaling, LinearScalingConfig):
            rope |= {"rope_type": "linear", "factor": self.scaling.factor}
        elif self.scaling is not None:
            length = self.scaling.original_max_position_embeddings or model.max_position_embeddings
            rope |= self.scaling.model_dump(exclude_none=True) | {"original_max_position_embeddings": length}
        if pairs < dim // 2:
            if rope["rope_type"] not in ("default", "linear"):
                return None
            share = 2 * pairs / dim
            if share * dim < 2 * pairs:  # as whole numbers of pairs are cut off there, this would be one too few
                share = math.nextafter(share, 1)
            rope |= {"rope_type": "proportional", "partial_rotary_factor": share}
        return rope


POSITION_CONFIGS: dict[str, type[PositionConfig]] = {
    "none": NoneConfig,
    "sinusoidal": SinusoidalConfig,
    "learned": LearnedConfig,
    "rope": RopeConfig,
    "learned_theta": LearnedThetaConfig,
    "alibi": BiasConfig,
    "t5": T5Config,
}


def position_config(options) -> PositionConfig:
    """The options class of a scheme, from its name or from a mapping {scheme: name, option: value …}."""
    if isinstance(options, PositionConfig):
        return options
    options = {"scheme": options} if isinstance(options, str) else options
    if not isinstance(options, dict) or not isinstance(options.get("scheme", "rope"), str):
        raise ValueError("give the name of a scheme, or a mapping of its options")
    options = {"scheme": "rope", **options}
    name = options["scheme"]
    if name not in POSITION_CONFIGS:
        # Only a name unknown here pays for torch's import: a scheme without options needs no line in this file.
        from model.position import POSITIONS

        if name not in POSITIONS:
            raise ValueError(f"unknown scheme {name!r}, known: {', '.join(POSITIONS)}")
    return POSITION_CONFIGS.get(name, PositionConfig)(**options)


class ModelConfig(FrozenConfig):
    """Shape of a Llama-style decoder, in the names of Hugging Face's LlamaConfig."""

    vocab_size: PositiveInt | None = None
    """number of token ids; null: filled in from the tokenizer"""
    hidden_size: PositiveInt = 256
    """width of the residual stream"""
    num_hidden_layers: PositiveInt = 4
    """number of blocks"""
    num_attention_heads: PositiveInt = 4
    """query heads of a layer"""
    intermediate_size: PositiveInt | None = None
    """width inside the SwiGLU; null: 8/3 of hidden_size, rounded up to a multiple of 32"""
    num_key_value_heads: PositiveInt | None = None
    """key and value heads of a layer, shared by groups of query heads; null: num_attention_heads"""
    head_dim: PositiveInt | None = None
    """width of one head; null: hidden_size / num_attention_heads"""
    max_position_embeddings: PositiveInt = 256
    """tokens of context that the model is trained on"""
    rms_norm_eps: PositiveFloat = 1e-5
    """added to the mean square inside RMSNorm"""
    initializer_range: PositiveFloat = 0.02
    """standard deviation of the initial weights"""
    tie_word_embeddings: bool = True
    """one matrix for the token embeddings and the output"""
    qk_norm: bool = False
    """RMSNorm of each query and key head (Henry et al. 2020), before the rotation, as in Qwen3"""
    attention_bias: Literal[False, True, "qkv"] = False
    """true: biases in the four projections of attention; qkv: in all but the output's, as in Qwen2"""
    attention: Literal["softmax", "linear"] = "softmax"
    """softmax over the scores, or linear attention with elu + 1 (Katharopoulos et al. 2020)"""
    position: SerializeAsAny[PositionConfig] = RopeConfig(scheme="rope")
    """positional scheme: a name, or a mapping of scheme and its options"""

    @field_validator("intermediate_size", "num_key_value_heads", "head_dim", mode="before")
    @classmethod
    def _size_that_follows(cls, value, info: ValidationInfo):
        if value is not None or not {"hidden_size", "num_attention_heads"} <= info.data.keys():
            return value
        hidden_size, heads = info.data["hidden_size"], info.data["num_attention_heads"]
        if info.field_name == "head_dim" and hidden_size % heads:
            raise ValueError(f"num_attention_heads {heads} must divide hidden_size {hidden_size}")
        return {
            "intermediate_size": -(-8 * hidden_size // 96) * 32,
            "num_key_value_heads": heads,
            "head_dim": hidden_size // heads,
        }[info.field_name]

    @field_validator("position", mode="plain")
    @classmethod
    def _scheme_with_its_own_options(cls, value):
        return position_config(value)

    @model_validator(mode="after")
    def _fits_together(self):
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if heads % groups:
            raise ValueError(f"num_key_value_heads {groups} must divide num_attention_heads {heads}")
        self.position.check(self)
        return self

    def with_position(self, options: dict) -> "ModelConfig":
        """The same with some options of the positional scheme replaced.

        ValueError: what the scheme refuses, or a scaling where the model was trained with another.
        """
        position = self.position.model_dump()
        if options.get("scaling") and (trained := position.get("scaling")):
            stored = {key: value for key, value in trained.items() if value is not None}
            raise ValueError(f"position.scaling: the model was trained with {stored}, no other can take its place")
        return ModelConfig(**{**self.model_dump(), "position": position | options})
