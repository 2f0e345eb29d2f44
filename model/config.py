"""What a model is: its shape, and the options of its positional scheme."""

from pydantic import PositiveFloat, PositiveInt, SerializeAsAny, ValidationInfo, field_validator, model_validator

from base import FrozenConfig


class PositionConfig(FrozenConfig):
    """Options of a scheme that has none, and the base of those that have some."""

    scheme: str
    """name in the registry of model/position.py"""

    def check(self, model: "ModelConfig") -> None:
        """Raises ValueError where the scheme cannot work with the model's shape."""

    def transformers_keys(self, model: "ModelConfig") -> dict:
        """config.json keys that make `transformers` compute this scheme; empty where none of its models does."""
        return {}


class NoneConfig(PositionConfig):
    """No positions: in `transformers`, a SmolLM3 whose layers all go without rotation."""

    def transformers_keys(self, model):
        return {
            "model_type": "smollm3",
            "architectures": ["SmolLM3ForCausalLM"],
            "no_rope_layers": [0] * model.num_hidden_layers,
            "use_sliding_window": False,
        }


class SinusoidalConfig(PositionConfig):
    """Options of the fixed sinusoids of Vaswani et al. 2017."""

    base: PositiveFloat = 10000.0
    """θ_i = base^(−2i / hidden_size), radians per token"""
    rms: PositiveFloat | None = None
    """root mean square of the added vectors; null: that of the token embeddings; 0.7071: as printed in the paper"""

    def check(self, model):
        if model.hidden_size % 2:
            raise ValueError(f"sinusoidal needs an even model.hidden_size, got {model.hidden_size}")


class LearnedThetaConfig(PositionConfig):
    """Options of rotary embeddings with trained θ: the ladder that training starts from."""

    base: PositiveFloat = 10000.0
    """θ_i = base^(−2i / head_dim), radians per token"""

    def check(self, model):
        if model.head_dim % 2:
            raise ValueError(f"{self.scheme} rotates pairs: model.head_dim must be even, got {model.head_dim}")


class RopeConfig(LearnedThetaConfig):
    """Options of rotary embeddings (Su et al. 2021)."""

    def transformers_keys(self, model):
        # version 4 reads rope_theta and silently ignores rope_parameters, version 5 reads either
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "rope_theta": self.base,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.base},
        }


POSITION_CONFIGS: dict[str, type[PositionConfig]] = {
    "none": NoneConfig,
    "sinusoidal": SinusoidalConfig,
    "rope": RopeConfig,
    "learned_theta": LearnedThetaConfig,
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
