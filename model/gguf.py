"""A checkpoint as one file for llama.cpp: python -m model.gguf RUN OUT.gguf"""

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, pre_tokenizers
from torch import Tensor

from base import (
    ArgumentParser,
    InputError,
    find_checkpoint,
    input_errors_end_the_program,
    printable,
    read_json,
    writing,
)
from model.checkpoint import TOKENIZER, load_checkpoint
from model.position.base import ladder, phases
from model.transformer import Transformer

FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7}  # as `general.file_type` has them
STILL = 1e30  # divides the angle of a pair that does not turn


def export(folder: Path, out: Path, kind: str = "F32") -> None:
    """Writes the newest checkpoint of a folder as the file `out`, which is then complete, or as it was before.

    kind: F32, F16 or Q8_0, of the matrices; vectors are F32. Q8_0 holds rows in blocks of 32 numbers: a matrix whose
    rows are no multiple of that is F16. InputError: no checkpoint, none that llama.cpp computes, or `out` cannot be
    written.
    """
    try:
        import gguf
    except ImportError:
        raise InputError("the export needs a library that is not installed: pip install gguf") from None
    folder = find_checkpoint(folder)
    model = load_checkpoint(folder)
    config, stored = model.config, read_json(folder / "config.json")
    try:
        theta, sizes = _rotation(model)
        base, divisors = _divided_ladder(model, theta)
    except ValueError as error:
        raise InputError(f"{folder}: {error} has no counterpart in llama.cpp's Llama and Qwen3") from None
    tokens, kinds, merges = _vocabulary(folder / TOKENIZER, config.vocab_size)
    arch = gguf.MODEL_ARCH.QWEN3 if config.qk_norm else gguf.MODEL_ARCH.LLAMA

    beside = Path(f"{out}.partial")
    writer = gguf.GGUFWriter(beside, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_name(printable(out.stem))
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(base)
    if config.qk_norm:  # Qwen3 has no rope_freqs
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(divisors[0].item())
    elif not torch.allclose(divisors, torch.ones_like(divisors), rtol=1e-6):
        writer.add_tensor("rope_freqs.weight", divisors.float().numpy())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType[each] for each in kinds])
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    for key in ("bos_token_id", "eos_token_id"):
        ids = stored.get(key)
        first = ids[0] if isinstance(ids, list) and ids else ids
        if first in range(len(tokens)):
            getattr(writer, f"add_{key}")(first)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in _weights(model, sizes, len(tokens)):
        fits = kind if kind != "Q8_0" or tensor.shape[-1] % 32 == 0 else "F16"
        held = gguf.GGMLQuantizationType[fits if tensor.dim() == 2 else "F32"]
        theirs = names.get_name(name, (".weight", ".bias"))
        writer.add_tensor(theirs, gguf.quantize(tensor.numpy(), held), raw_dtype=held)
    with writing(out):
        try:
            with closing(writer):
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.write_tensors_to_file()
            os.replace(beside, out)
        finally:
            beside.unlink(missing_ok=True)


@torch.no_grad()
def _rotation(model: Transformer) -> tuple[Tensor, Tensor]:
    """θ in radians per token and the factor on cos and sin, each (pairs,) float64, of the pairs that the scheme turns.

    ValueError names what of the model is more than a rotation that is the same in all layers.
    """
    config, position = model.config, model.position
    scheme, positions = f"position {config.position.scheme!r}", torch.arange(8)
    if config.attention != "softmax":
        raise ValueError(f"attention {config.attention!r}")
    if config.position.temperature:
        raise ValueError("position.temperature")
    for hook in ("embedding", "key_rotation", "bias", "temperature", "features", "content_bias"):
        if position.overrides(hook):
            raise ValueError(f"{scheme} with its {hook}")
    turns = position.rotation(positions)
    if turns is None:
        return torch.zeros(0), torch.zeros(0)
    if isinstance(turns, list) or not all(map(position.acts_in, range(config.num_hidden_layers))):
        raise ValueError(f"{scheme} with another rotation in some layers")
    turned = torch.complex(*(wave.double() for wave in turns))
    theta, sizes = turned[1].angle(), turned[0].abs()
    if not torch.allclose(turned, torch.polar(sizes.expand_as(turned), phases(positions, theta)), rtol=1e-5, atol=0):
        raise ValueError(f"{scheme} with a rotation that is not steady")
    return theta, sizes


def _divided_ladder(model: Transformer, theta: Tensor) -> tuple[float, Tensor]:
    """The base of a ladder over all pairs of a head, and what its steps are divided by to give θ, (pairs,).

    ValueError names what Llama, or with qk_norm Qwen3, does not have there.
    """
    config, pairs = model.config, model.config.head_dim // 2
    if config.head_dim % 2:
        raise ValueError(f"head_dim {config.head_dim}, which is odd,")
    theta = F.pad(theta, (0, pairs - len(theta)))
    base, last = 10000.0, max(theta.nonzero().flatten().tolist(), default=0)
    if last and (ratio := (theta[0] / theta[last]).item()) > 1:
        base = ratio ** (pairs / last)
    divisors = torch.where(theta == 0, STILL, ladder(config.head_dim, base) / theta)
    if config.qk_norm and not torch.allclose(divisors, divisors[:1], rtol=1e-6):
        raise ValueError(f"qk_norm with θ of position {config.position.scheme!r} that no single base gives")
    if config.qk_norm and config.attention_bias is True:
        raise ValueError("qk_norm with attention_bias true")
    return base, divisors


def _weights(model: Transformer, sizes: Tensor, tokens: int) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's names and the tensors, their rows in llama.cpp's order, without those past the tokens.

    There Llama turns channels 2i and 2i + 1, Qwen3 i and i + d/2. The factor on cos and sin, sizes (pairs,), goes into
    the weights: llama.cpp's own, one for all channels, would reach those that this scheme leaves alone.
    """
    config, pairs = model.config, len(sizes)
    channels = torch.arange(2 * pairs)
    channels = channels.view(2, pairs) if model.position.layout == "half" else channels.view(pairs, 2).T
    size = torch.ones(config.head_dim)
    size[channels] = sizes.float()
    order = torch.cat(
        ((channels if config.qk_norm else channels.T).flatten(), torch.arange(2 * pairs, config.head_dim))
    )
    for name, tensor in model.state_dict().items():
        part = name.split(".")[-2]
        if part in ("q_proj", "k_proj", "q_norm", "k_norm"):
            heads = tensor.unflatten(0, (-1, config.head_dim)).movedim(1, -1)
            if part.endswith("norm") == config.qk_norm:  # a size that comes before the norm would be lost in it
                heads = heads * size
            tensor = heads[..., order].movedim(-1, 1).flatten(0, 1)
        if part in ("embed_tokens", "lm_head"):
            tensor = tensor[:tokens]
        if not name.startswith("position."):
            yield name if part == "lm_head" else f"model.{name}", tensor.contiguous()


def _vocabulary(file: Path, size: int) -> tuple[list[str], list[str], list[str]]:
    """The tokens of a tokenizer.json in the letters of byte-level BPE, the kind of each, and the merges.

    InputError names the file where it is no tokenizer of ours, or has more tokens than a model of so many.
    """
    stored = read_json(file)
    try:
        stored = json.loads(Tokenizer.from_str(json.dumps(stored)).to_str())  # with all that it may leave out
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{file}: not a readable tokenizer.json: {error}") from None
    if [[*part] for part in (stored["post_processor"] or {}).get("single", [])] == [["Sequence"]]:  # adds nothing
        stored["post_processor"] = None
    match stored:
        case {
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": splits},
            "post_processor": None,
            "model": {
                "type": "BPE",
                "vocab": own,
                "merges": pairs,
                "dropout": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "ignore_merges": False,
            },
        } if splits or not pairs:
            merges = [" ".join(pair) for pair in pairs]
        case {
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": r"[\s\S]"},
                "behavior": "Isolated",
                "invert": False,
            },
            "post_processor": None,
            "model": {"type": "WordLevel", "vocab": own},
        } if all(len(text) == 1 for text in own):  # made of its bytes, from the first on
            letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
            own = {letters(text)[0][0]: number for text, number in own.items()}
            merges = list(dict.fromkeys(f"{text[:n]} {text[n]}" for text in own for n in range(1, len(text))))
        case _:
            raise InputError(f"{file}: expected a tokenizer of the kinds that train.py makes: byte, char, bpe")
    added = {token["id"]: token for token in stored["added_tokens"] if token["id"] < size}
    tokens = {number: text for text, number in own.items()} | {n: token["content"] for n, token in added.items()}
    if sorted(tokens) != list(range(min(size, len(tokens)))):
        raise InputError(f"{file}: expected token ids from 0 on, below the model's {size}, without a gap")
    named = {n: "CONTROL" if token["special"] else "USER_DEFINED" for n, token in added.items()}
    kinds = [named.get(n, "NORMAL") for n in range(len(tokens))]
    # the writer drops empty lists: without merges there is one that never happens
    return [tokens[n] for n in range(len(tokens))], kinds, merges or ["no merge"]


def parse_arguments() -> Namespace:
    parser = ArgumentParser(prog="python -m model.gguf", description="Write a checkpoint as one file for llama.cpp.")
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run, or a single checkpoint")
    parser.add_argument("out", type=Path, metavar="OUT.gguf", help="the file; one that exists is replaced")
    parser.add_argument("--type", choices=FILE_TYPES, default="F32", help="of the matrices; default F32, as trained")
    return parser.parse_args()


def main() -> None:
    with input_errors_end_the_program():
        args = parse_arguments()
        export(args.folder, args.out, args.type)


if __name__ == "__main__":
    main()
