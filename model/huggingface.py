"""config.json in the keys of `transformers`: those that its models read from us, and those that we read from them."""

from pathlib import Path

from pydantic import ValidationError

from base import InputError
from model.config import ModelConfig
from model.position import Position, build_position
from model.transformer import Transformer
from settings import one_line

# The types that are read, with what their files may leave out as the default of the type, where that is not ours.
LLAMA = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
QWEN = LLAMA | {"max_position_embeddings": 32768}
DEFAULTS = {
    "llama": LLAMA,
    "mistral": LLAMA | {"max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": QWEN,
    "qwen3": QWEN | {"head_dim": 128},
    "smollm3": QWEN | {"tie_word_embeddings": True},
}

ORIGINAL = "original_max_position_embeddings"  # L: the length trained without scaling


def transformers_keys(config: ModelConfig, position: Position) -> dict:
    """config.json keys that make `transformers` compute this model; empty where none of its models does."""
    rope = position.rope_parameters()
    if rope is None or config.attention != "softmax" or config.position.temperature:
        return {}
    rotated = [int(bool(rope) and position.acts_in(layer)) for layer in range(config.num_hidden_layers)]
    bias = config.attention_bias
    name = "Qwen3" if config.qk_norm else "Qwen2" if bias == "qkv" else "Llama" if all(rotated) else "SmolLM3"
    if (name == "Qwen3" and bias == "qkv") or (name.startswith("Qwen") and not all(rotated)):
        return {}
    keys = {"model_type": name.lower(), "architectures": [f"{name}ForCausalLM"]}
    if name == "SmolLM3":
        keys |= {"no_rope_layers": rotated, "use_sliding_window": False}
    if rope:
        # version 4 reads rope_theta and rope_scaling and silently ignores rope_parameters, version 5 reads all
        keys |= {"rope_theta": rope["rope_theta"], "rope_parameters": rope}
        left_out = {"rope_theta": rope["rope_theta"]}
        if rope["rope_type"] == "yarn":  # the default there; 4.51 to 4.55, if given it, take another factor than ours
            left_out[ORIGINAL] = config.max_position_embeddings
        if rope["rope_type"] != "default":
            keys["rope_scaling"] = dict(item for item in rope.items() if item not in left_out.items())
    return keys


def read_config(file: Path, stored: dict) -> ModelConfig:
    """The model that a config.json, `stored`, describes: in our own keys, or in those of `transformers`.

    A file that `transformers` saved is read by its keys alone: ours it hands on as they were, whatever has changed.
    InputError names the file and a key where the model is none that can be computed here.
    """
    for key, value in {"hidden_act": "silu", "mlp_bias": False, "use_sliding_window": False}.items():
        _require(file, stored, key, value)
    if "position" not in stored or "transformers_version" in stored:
        return _of_transformers(file, stored)
    return _model_config(file, stored)


def check_agreement(file: Path, stored: dict, model: Transformer) -> None:
    """InputError where our own keys, read as `model`, and those of `transformers` say two different things."""
    ours = transformers_keys(model.config, model.position)
    if not ours or stored.get("model_type") == "whereabouts":  # either was once written where the other is now
        return
    config = _of_transformers(file, stored)
    theirs = transformers_keys(config, build_position(config))
    for key in ours | theirs:
        if ours.get(key) != theirs.get(key):
            raise InputError(
                f"{file}: {key} is {theirs.get(key)!r:.80}, but position, qk_norm, attention and "
                f"attention_bias make it {ours.get(key)!r:.80}"
            )


def _require(file, stored, key, value):
    if stored.get(key, value) != value:
        raise InputError(f"{file}: {key}: expected {value!r}, got {stored[key]!r:.60}")


def _model_config(file, values):
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        if values.get(key) is None:
            raise InputError(f"{file}: has no {key}")
    try:
        return ModelConfig(**{key: values[key] for key in ModelConfig.model_fields if key in values})
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}") from error


def _of_transformers(file, stored):
    model_type = stored.get("model_type")
    if not isinstance(model_type, str) or model_type not in DEFAULTS:
        raise InputError(f"{file}: model_type: expected one of {', '.join(DEFAULTS)}, got {model_type!r:.60}")
    values = DEFAULTS[model_type] | stored | {"attention": "softmax", "qk_norm": model_type == "qwen3"}
    if model_type == "mistral":
        _require(file, values, "sliding_window", None)
    layer_types = stored.get("layer_types") or []
    if not isinstance(layer_types, list) or any(each != "full_attention" for each in layer_types):
        raise InputError(f"{file}: layer_types: expected 'full_attention' alone, got {layer_types!r:.60}")
    if model_type in ("mistral", "qwen2"):  # which have no such key
        values["attention_bias"] = "qkv" if model_type == "qwen2" else False
    shape = _model_config(file, values | {"position": "none"})
    return _model_config(file, values | {"position": _position(file, values, shape)})


def _position(file, values, shape):
    """Options of our scheme `rope`, or `none`."""
    position, rope = {"scheme": "rope", "base": 10000.0}, _rope_parameters(file, values)
    if values["model_type"] == "smollm3":
        rotated = values.get("no_rope_layers")
        if not isinstance(rotated, list) or len(rotated) < shape.num_hidden_layers:
            raise InputError(
                f"{file}: no_rope_layers: expected a list with a number for each layer, got {rotated!r:.60}"
            )
        layers = [layer for layer, turns in enumerate(rotated[: shape.num_hidden_layers]) if turns]
        if not layers:
            return {"scheme": "none"}
        position |= {"base": 2000000.0, "every": 1 if len(layers) == shape.num_hidden_layers else layers}
    rope_type, share = rope.pop("rope_type", "default"), rope.pop("partial_rotary_factor", 1.0)
    if "rope_theta" in rope:
        position["base"] = rope.pop("rope_theta")
    if rope_type == "proportional" and isinstance(share, int | float) and 0 < share <= 1:
        position |= {"partial": "p_rope", "fraction": 2 * int(share * shape.head_dim // 2) / shape.head_dim}
        rope_type = "linear" if "factor" in rope else "default"
    elif share != 1:
        raise InputError(f"{file}: partial_rotary_factor: expected 1 for {rope_type!r:.60}, got {share!r:.60}")
    if rope_type == "longrope" and (short := rope.pop("short_factor", None)) != rope.get("long_factor"):
        raise InputError(f"{file}: short_factor: expected the numbers of long_factor, got {short!r:.60}")
    return position | {"scaling": None if rope_type == "default" else {"rope_type": rope_type, **rope}}


def _rope_parameters(file, stored):
    """Base and scaling from where versions 4 and 5 have them. InputError where both places are taken and disagree."""
    found = {}
    for key in ("rope_scaling", "rope_parameters"):
        found[key] = stored.get(key) or {}
        if not isinstance(found[key], dict):
            raise InputError(f"{file}: {key}: expected a mapping, got {found[key]!r:.60}")
        if "type" in found[key]:  # its older name
            found[key] = {"rope_type": found[key]["type"], **found[key]}
            del found[key]["type"]
    old, new = found.values()
    if "rope_scaling" in stored:
        old.setdefault("rope_type", "default")
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in stored:
            old.setdefault(key, stored[key])
    for key in old:
        if key in new and new[key] != old[key]:
            raise InputError(f"{file}: {key} is {new[key]!r:.60} in rope_parameters, but {old[key]!r:.60} outside")
    rope, trained = old | new, stored.get(ORIGINAL)
    if trained is not None and rope.get("rope_type") in ("yarn", "llama3", "longrope"):  # first, as Phi-3 has it there
        rope[ORIGINAL] = trained
    return rope
