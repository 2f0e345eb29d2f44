"""Turns a GGUF file of a Llama with a byte-level BPE tokenizer into a Hugging Face folder.

    pip install gguf
    python docs/from_gguf.py MODEL.gguf FOLDER

Weights are dequantized to float32: the folder holds the quantized model, at several times the size.
llama.cpp pairs channels 2i and 2i + 1 where Hugging Face pairs i and i + d/2: rows of queries and keys go back.
"""

import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
# what splits a text before its bytes are merged, by the name that llama.cpp gives it
SPLITS = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}


def hugging_face_name(name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight"""
    *block, part, end = name.split(".")
    return ".".join([*(["model", "layers", block[1]] if block else []), NAMES[part], end])


def halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (heads · d, in) of pairs 2i and 2i + 1, put at i and i + d/2 of their head."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def main(file: str, folder: str) -> None:
    reader, place = GGUFReader(file), Path(folder)

    def value(key, default=None):
        return reader.fields[key].contents() if key in reader.fields else default

    if value("general.architecture") != "llama" or value("tokenizer.ggml.model") != "gpt2":
        sys.exit(f"{file}: expected a llama with a gpt2 tokenizer")
    if (split := value("tokenizer.ggml.pre")) not in SPLITS:
        sys.exit(f"{file}: tokenizer.ggml.pre: expected one of {', '.join(SPLITS)}, got {split!r}")
    heads, groups = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            weight = halves(weight, heads if ".attn_q." in tensor.name else groups)
        tensors[hugging_face_name(tensor.name)] = weight
    place.mkdir(parents=True)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})

    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*SPLITS[split], byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(place / "tokenizer.json"))

    ids = {name: value(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    settings = {f"{name}_token": tokens[token] for name, token in ids.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": value("tokenizer.chat_template")}
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "vocab_size": len(tokens), "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"), "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": groups,
        "max_position_embeddings": value("llama.context_length"), "rope_theta": value("llama.rope.freq_base", 10000.0),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "lm_head.weight" not in tensors, "torch_dtype": "float32",
        **{f"{name}_token_id": token for name, token in ids.items()},
    }  # fmt: skip
    for name, content in {"config.json": config, "tokenizer_config.json": settings}.items():
        (place / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
