"""Checkpoint folders: the only file that knows the format, which is Hugging Face's."""

import json
import os
import shutil
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from base import InputError, one_line
from model.config import ModelConfig
from model.transformer import Transformer

WEIGHTS = "model.safetensors"
TRAINER = "trainer.pt"
# What older files leave out because it is the default of `transformers`, where that is not ours.
LLAMA_DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}


def save_checkpoint(folder: Path, model: Transformer, files: dict[str, str], trainer: dict | None = None) -> None:
    """Writes a checkpoint folder that is complete or not there: written beside, flushed, then renamed.

    files: further text files by name, such as the tokenizer's. trainer: what a resumed training needs; tensors,
    numbers, strings and containers of them.
    """
    beside, old = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "old"))
    for left in (beside, old):
        shutil.rmtree(left, ignore_errors=True)
    beside.mkdir(parents=True)
    for name, text in {"config.json": json.dumps(_config_json(model.config, files), indent=2), **files}.items():
        (beside / name).write_text(text, encoding="utf-8")
    tensors = {_outer_name(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, beside / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(beside / "config.json", beside / WEIGHTS)  # safetensors makes files only their owner can read
    if trainer is not None:
        torch.save(trainer, beside / TRAINER)
    for path in [*beside.iterdir(), beside]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    if folder.exists():  # a folder that is not empty cannot be renamed over
        os.replace(folder, old)
    os.replace(beside, folder)
    shutil.rmtree(old, ignore_errors=True)


def find_checkpoint(folder: Path) -> Path:
    """The checkpoint that a folder means: itself, or the newest of a run folder. InputError if there is none."""
    if (folder / "config.json").is_file():
        return folder
    complete = sorted(folder.glob("checkpoints/step_*/config.json"), key=lambda path: int(path.parent.name[5:]))
    if not complete:
        raise InputError(f"{folder}: neither a run folder with a checkpoint nor a checkpoint folder with a config.json")
    return complete[-1].parent


def load_checkpoint(
    folder: Path, dtype: torch.dtype = torch.float32, position_options: dict | None = None
) -> Transformer:
    """The model of a checkpoint folder, ours or any Hugging Face Llama's, on the CPU, with weights in `dtype`.

    position_options replace those the model was trained with: {"scaling": {…}} reaches past its trained length.
    Raises InputError naming the file where one is missing, cut short, damaged, or not what its config says.
    """
    model = Transformer(_read_config(folder, position_options or {}), seed=None)
    wanted = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as stored:
                for outer_name in stored.keys():
                    name = outer_name.removeprefix("model.")
                    if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and name not in wanted):
                        continue  # derived from the config; a copy of the tied embeddings
                    if name not in wanted:
                        raise InputError(f"{file}: holds {outer_name}, which a model of its config.json has not")
                    shape, expected = stored.get_slice(outer_name).get_shape(), list(wanted[name].shape)
                    if shape != expected:
                        raise InputError(f"{file}: {outer_name} has shape {shape}, its config.json says {expected}")
                    tensors[name] = stored.get_tensor(outer_name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: missing, cut short or damaged ({error})") from error
    missing = wanted.keys() - tensors.keys()
    if missing:
        raise InputError(f"{folder}: no weights for {', '.join(sorted(missing)[:3])} ({len(missing)} missing)")
    model.load_state_dict(tensors, assign=True)
    return model.to(dtype)


def load_trainer(folder: Path) -> dict:
    """What `save_checkpoint` was given as `trainer`."""
    try:
        return torch.load(folder / TRAINER, weights_only=True)
    except Exception as error:  # a damaged file raises anything, from EOFError to RuntimeError
        raise InputError(f"{folder / TRAINER}: missing, cut short or damaged ({type(error).__name__})") from error


def read_json(file: Path) -> dict:
    """The mapping in a JSON file; InputError names the file otherwise."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: missing, cut short or not JSON ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds a {type(content).__name__}, not a mapping")
    return content


def _outer_name(name: str) -> str:
    return name if name.startswith(("lm_head.", "position.")) else f"model.{name}"


def _config_json(config: ModelConfig, files: dict[str, str]) -> dict:
    tokenizer = json.loads(files.get("tokenizer.json", "{}"))
    token_ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    names = json.loads(files.get("tokenizer_config.json", "{}"))
    return {
        # where `transformers` has no such model, a type it does not know keeps it from building another one
        "model_type": "whereabouts",
        **config.model_dump(mode="json"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": token_ids.get(names.get("bos_token")),
        "eos_token_id": token_ids.get(names.get("eos_token")),
        "pad_token_id": None,
        "torch_dtype": "float32",
        **config.position.transformers_keys(config),
    }


def _read_config(folder: Path, position_options: dict) -> ModelConfig:
    file = folder / "config.json"
    stored = read_json(file)
    for key, value in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if stored.get(key, value) != value:
            raise InputError(f"{file}: {key} is {stored[key]!r}, only {value!r} is known here")
    if "position" not in stored:
        stored = {**LLAMA_DEFAULTS, **stored, "position": _llama_position(file, stored)}
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        if stored.get(key) is None:
            raise InputError(f"{file}: has no {key}")
    if position_options and isinstance(stored["position"], dict):
        stored["position"] = stored["position"] | position_options
    try:
        return ModelConfig(**{key: stored[key] for key in ModelConfig.model_fields if key in stored})
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}") from error


def _llama_position(file: Path, stored: dict) -> dict:
    if stored.get("model_type") != "llama":
        raise InputError(f"{file}: model_type is {stored.get('model_type')!r}, only 'llama' can be read")
    rope = {}
    for key in ("rope_scaling", "rope_parameters"):
        options = stored.get(key) or {}
        if not isinstance(options, dict):
            raise InputError(f"{file}: {key} is {options!r}, not a mapping")
        rope |= options
    base = rope.pop("rope_theta", stored.get("rope_theta", 10000.0))
    rope_type = rope.pop("rope_type", rope.pop("type", "default"))
    scaling = None if rope_type == "default" else {"rope_type": rope_type, **rope}
    return {"scheme": "rope", "base": base, "scaling": scaling}


def _weight_files(folder: Path) -> list[Path]:
    index = folder / f"{WEIGHTS}.index.json"
    if not index.is_file():
        return [folder / WEIGHTS]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{index}: weight_map must give the name of a file for each tensor")
    return [folder / Path(name).name for name in sorted(set(names.values()))]
