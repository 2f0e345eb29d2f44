"""The decoder: a Llama whose positional scheme is a part to be chosen."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from base import InputError
from model.attention import ATTENTIONS, AttentionInputs, in_documents, recomputed
from model.cache import Cache, FixedCache
from model.config import ModelConfig
from model.device import without_autocast
from model.inputs import attention_inputs, inputs_of_next
from model.linear import Embedding, Linear, joined, lay_side_by_side, linear, pack
from model.norm import RMSNorm
from model.position import build_position
from settings import one_line


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)). Shazeer 2020, equation 6."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = joined(x, self.gate_proj, self.up_proj).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = ATTENTIONS[config.attention](config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def with_same_input(self) -> Iterator[tuple[Linear, ...]]:
        """The projections, those together that are multiplied with the same."""
        attention, mlp = self.self_attn, self.mlp
        yield attention.q_proj, attention.k_proj, attention.v_proj
        yield (attention.o_proj,)
        yield mlp.gate_proj, mlp.up_proj
        yield (mlp.down_proj,)

    def forward(self, x: Tensor, inputs: AttentionInputs) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), inputs)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """Llama-style decoder (Touvron et al. 2023) with the scheme of `config.position` behind a few hooks."""

    def __init__(self, config: ModelConfig, seed: int | None = 0):
        """seed None leaves the weights on the meta device, for `load_state_dict(…, assign=True)` to bring."""
        super().__init__()
        self.config = config
        self.recompute = False  # whether a backward pass keeps a block's input alone, and computes the rest once more
        with torch.device("meta" if seed is None else "cpu"):
            self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
            self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            if not config.tie_word_embeddings:
                self.lm_head = Linear(config.hidden_size, config.vocab_size)
        # Built last: for one seed all schemes start from the same shared weights.
        self.position = build_position(config)
        if seed is not None:
            self.init_weights(seed)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Draws the initial weights, module after module, from a generator of their own on the CPU.

        | weights                                     | initial value                                    |
        |---------------------------------------------|--------------------------------------------------|
        | Linear, Embedding                           | N(0, initializer_range²)                         |
        | o_proj, down_proj, which end residual paths | N(0, initializer_range² / (2 num_hidden_layers)) |
        | RMSNorm                                     | 1                                                |
        | biases                                      | 0                                                |
        | bare parameters of a positional scheme      | the constants its class gives them               |
        """
        generator = torch.Generator().manual_seed(seed)
        for name, module in self.named_modules():
            if isinstance(module, nn.RMSNorm):
                module.weight.fill_(1.0)
            elif isinstance(module, (nn.Linear, nn.Embedding)):
                ends_residual_path = name.endswith(("o_proj", "down_proj"))
                paths = 2 * self.config.num_hidden_layers if ends_residual_path else 1
                std = self.config.initializer_range / paths**0.5
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * std)
                if getattr(module, "bias", None) is not None:
                    module.bias.zero_()

    def lay_side_by_side(self) -> None:
        """Moves weights that are multiplied with the same input into one piece of memory; their values stay."""
        for block in self.layers:
            for projections in block.with_same_input():
                if len(projections) > 1 and not projections[0].weight.is_mkldnn:
                    lay_side_by_side(*projections)

    def pack(self, dtype: torch.dtype | None = None) -> None:
        """`pack`s the matrices, in dtype or their own. From here on the model gives logits on a CPU, and nothing else.

        The embedding stays: an output layer that shared it gets a copy.
        """
        if self.output_weight.is_mkldnn:
            return
        dtype, head = dtype or self.output_weight.dtype, self.output_weight
        if self.config.tie_word_embeddings:
            self.config = self.config.model_copy(update={"tie_word_embeddings": False})
            with torch.device("meta"):
                self.lm_head = Linear(self.config.hidden_size, self.config.vocab_size)
            self.lm_head.weight = head
        for block in self.layers:
            for projections in block.with_same_input():
                pack(dtype, *projections)
        pack(dtype, self.lm_head)

    def drop_position(self) -> None:
        """Makes this model one of `none` in place, as `ModelConfig.without_position` describes it."""
        self.config, sharpness = self.config.without_position(), self.position.sharpness
        self.position = build_position(self.config)
        self.position.sharpness = sharpness  # of the temperature, as trained

    def forward(
        self, input_ids: Tensor, cache: Cache | None = None, positions: Tensor | None = None, logits_to_keep: int = 0
    ) -> Tensor:
        """Logits (B, T, vocab_size) of input_ids (B, T), or of the last logits_to_keep positions alone.

        With a cache the tokens continue those seen; prefill, chunked prefill and decode are this same call.
        positions (B, T) gives each row its own; negative ones mark padding on the left. With either a row is one
        document, else those that config.document_start_token_id tells apart, if it is set.
        """
        hidden = self.hidden_states(input_ids, cache, positions)
        return linear(hidden[:, -logits_to_keep:], self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """(vocab_size, hidden_size) of the output layer."""
        return (self.embed_tokens if self.config.tie_word_embeddings else self.lm_head).weight

    def hidden_states(self, input_ids: Tensor, cache: Cache | None = None, positions: Tensor | None = None) -> Tensor:
        """(B, T, hidden_size) after the last norm; arguments as in `forward`."""
        start, scheme = 0 if cache is None else cache.length, self.position
        end = start + input_ids.shape[-1]
        is_causal = positions is None and (start == 0 or end == start + 1)  # SDPA needs no mask for these
        documents, starts_with = None, self.config.document_start_token_id
        goes_on = is_causal and start and cache.positions.dim() == 1 and not torch.is_grad_enabled()
        if positions is None and cache is None and starts_with is not None:
            is_causal, (documents, positions) = False, in_documents(input_ids, starts_with)
        elif positions is None:
            positions = torch.arange(start, end, device=input_ids.device)
        if (known := scheme.max_length) is not None:
            is_within = positions.dim() == 1 or isinstance(cache, FixedCache)
            last = end - 1 if is_within else int(positions.max())
            if last >= known:
                name = self.config.position.scheme
                raise IndexError(f"position {last} lies past the {known} positions that {name} has")
        x = self.embed_tokens(input_ids).to(self.norm.weight.dtype)  # where the matrices alone are in half precision
        with without_autocast(x.device):  # positions are exact in any precision of the model
            if goes_on and not torch.compiler.is_compiling():
                embedding, inputs = inputs_of_next(scheme, cache, x.dtype)
            else:
                embedding = scheme.embedding(positions)
                inputs = attention_inputs(scheme, positions, cache, is_causal, x.dtype, documents, len(x))
        if embedding is not None:
            x = x + embedding.to(x.dtype)
        for block, each in zip(self.layers, inputs):
            x = recomputed(block, x, each) if self.recompute else block(x, each)
        if cache is not None:
            cache.length = end
        return self.norm(x)


def with_config(model: Transformer, config: ModelConfig) -> Transformer:
    """A model of another config on the same weights, without a copy. InputError: it needs other parameters."""
    other = Transformer(config, seed=None)
    mine, others = ({name: tensor.shape for name, tensor in each.state_dict().items()} for each in (model, other))
    if mine != others:
        name = next(name for name in mine | others if mine.get(name) != others.get(name))
        raise InputError(f"model: {name} would have the shape {others.get(name)}, but has {mine.get(name)}")
    other.load_state_dict(model.state_dict(), assign=True)
    return other


def with_position(model: Transformer, options: dict) -> Transformer:
    """Another model on the same weights, without a copy, with some options of its scheme replaced.

    {"scaling": {"rope_type": "yarn", "factor": 4}} reaches past the trained length. InputError: what the scheme
    refuses, a scaling in place of one trained with, or what needs other position parameters than this model has.
    """
    try:
        config = model.config.with_position(options)
    except ValueError as error:
        raise InputError(one_line(error) if isinstance(error, ValidationError) else str(error)) from None
    return with_config(model, config)
