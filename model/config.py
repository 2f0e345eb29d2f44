"""What a model is: its shape, and its positional scheme with that scheme's options."""

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from model.position import POSITIONS, Position, build_position, position_options
from settings import FrozenConfig, Positive, Single, Size


class ModelConfig(FrozenConfig):
    """Shape of a Llama-style decoder, in the names of Hugging Face's LlamaConfig."""

    vocab_size: Size | None = None
    """number of token ids; null: filled in from the tokenizer"""
    hidden_size: Size = 256
    """width of the residual stream"""
    num_hidden_layers: Annotated[int, Field(gt=0, le=10_000)] = 4
    """number of blocks"""
    num_attention_heads: Size = 4
    """query heads of a layer"""
    intermediate_size: Size | None = None
    """width inside the SwiGLU; null: 8/3 of hidden_size, rounded up to a multiple of 32"""
    num_key_value_heads: Size | None = None
    """key and value heads of a layer, shared by groups of query heads; null: num_attention_heads"""
    head_dim: Size | None = None
    """width of one head; null: hidden_size / num_attention_heads"""
    max_position_embeddings: Size = 256
    """tokens of context that the model is trained on"""
    rms_norm_eps: Annotated[Single, Field(gt=0)] = 1e-5
    """added to the mean square inside RMSNorm"""
    initializer_range: Positive = 0.02
    """standard deviation of the initial weights"""
    tie_word_embeddings: bool = True
    """one matrix for the token embeddings and the output"""
    qk_norm: bool = False
    """RMSNorm of each query and key head (Henry et al. 2020), before the rotation, as in Qwen3"""
    attention_bias: Literal[False, True, "qkv"] = False
    """true: biases in the four projections of attention; qkv: in all but the output's, as in Qwen2"""
    attention: Literal["softmax", "linear"] = "softmax"
    """softmax over the scores, or linear attention with elu + 1 (Katharopoulos et al. 2020)"""
    document_start_token_id: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """token that begins a document: none sees another, and each counts positions from 0. null: a row is one;
    train.document_mask fills it in"""
    position: SerializeAsAny[Position.Options] = "rope"
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
        return position_options(value)

    @model_validator(mode="after")
    def _fits_together(self):
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if heads % groups:
            raise ValueError(f"num_key_value_heads {groups} must divide num_attention_heads {heads}")
        scheme = self.position.scheme
        changes = POSITIONS[scheme].overrides("bias", "temperature", "features", "content_bias")
        if self.attention != "softmax" and (changes or self.position.temperature):
            raise ValueError(f"attention {self.attention!r} has no scores for position {scheme!r} to change")
        self.position.check(self)
        return self

    def with_position(self, options: dict) -> "ModelConfig":
        """The same with some options of its scheme replaced. ValueError: refused, or in need of other parameters."""
        other = ModelConfig(**{**self.model_dump(), "position": self.position.updated(options)})
        mine, others = ({name: t.shape for name, t in build_position(c).state_dict().items()} for c in (self, other))
        if mine != others:
            raise ValueError(f"position: {options} needs parameters that this model does not have")
        return other

    def without_position(self) -> "ModelConfig":
        """The same with the scheme `none`; a temperature, which is no matter of order, stays, and acts in all layers."""
        kept = {"scheme": "none", "temperature": self.position.temperature}
        return ModelConfig(**{**self.model_dump(), "position": kept})
