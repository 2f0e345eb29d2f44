"""Checkpoint folders: the only file that knows the format, which is Hugging Face's."""

import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from base import InputError, writing
from model.config import ModelConfig
from model.transformer import Transformer
from settings import one_line

WEIGHTS = "model.safetensors"
TRAINER = "trainer.pt"
SUMS = "SHA256SUMS"  # of the two, as `sha256sum --check` reads it: a flipped bit in a weight shows nowhere else
MAX_JSON = 2**26  # bytes
# What older files leave out because it is the default of `transformers`, where that is not ours.
LLAMA_DEFAULTS = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}


def save_checkpoint(folder: Path, model: Transformer, files: dict[str, str], trainer: dict | None = None) -> None:
    """Writes a checkpoint folder that is complete or not there: written beside, flushed, then renamed.

    files: further text files by name, such as the tokenizer's. trainer: what a resumed training needs; tensors,
    numbers, strings and containers of them.
    InputError, and nothing has changed, where the disk is full or the folder cannot be written.
    """
    beside, old = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "old"))
    for left in (beside, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with writing(folder):
            _write(beside, model, files, trainer)
            if folder.exists():  # a folder that is not empty cannot be renamed over
                os.replace(folder, old)
            os.replace(beside, folder)
            _flush(folder.parent)
    except InputError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _write(folder, model, files, trainer):
    folder.mkdir(parents=True)
    for name, text in {"config.json": json.dumps(_config_json(model.config, files), indent=2), **files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    tensors = {_outer_name(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors makes files only their owner can read
    if trainer is not None:
        try:
            with (folder / TRAINER).open("wb") as file:
                torch.save(trainer, file)
        except RuntimeError as error:  # torch's own, on top of what the file raised
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    sums = [f"{_sum(folder / name)}  {name}\n" for name in (WEIGHTS, TRAINER) if (folder / name).exists()]
    (folder / SUMS).write_text("".join(sums), encoding="utf-8")
    for path in [*folder.iterdir(), folder]:
        _flush(path)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _sum(file):
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_sum(file):
    sums = file.with_name(SUMS)  # folders of others have none
    if sums.is_file() and f"{_sum(file)}  {file.name}" not in sums.read_text("utf-8", "replace").splitlines():
        raise InputError(f"{file}: damaged or changed, its SHA-256 is not that in {SUMS}")


def find_checkpoint(folder: Path) -> Path:
    """The checkpoint that a folder means: itself, or the newest of a run folder. InputError if there is none."""
    if (folder / "config.json").is_file():
        return folder
    complete = complete_checkpoints(folder)
    if not complete:
        raise InputError(f"{folder}: neither a run folder with a checkpoint nor a checkpoint folder with a config.json")
    return complete[max(complete)]


def complete_checkpoints(run: Path) -> dict[int, Path]:
    """The complete checkpoints of a run folder, by step."""
    found = {path.parent.name: path.parent for path in run.glob("checkpoints/step_*/config.json")}
    return {int(name[5:]): path for name, path in found.items() if name[5:].isdecimal()}


def load_checkpoint(
    folder: Path, dtype: torch.dtype = torch.float32, position_options: dict | None = None
) -> Transformer:
    """The model of a checkpoint folder, ours or a Hugging Face Llama's or Qwen3's, on the CPU, with weights in `dtype`.

    position_options replace those the model was trained with: {"scaling": {…}} reaches past its trained length.
    Raises InputError naming the file where one is missing, cut short, damaged, or not what its config says.
    """
    config, files = _read_config(folder, position_options or {}), _weight_files(folder)
    shapes = {name: shape for file in files for name, shape in _shapes(file).items()}
    _check_sizes(files[0], config, shapes)
    try:
        model = Transformer(config, seed=None)
    except (RuntimeError, TypeError, OverflowError):  # a table of positions that no memory holds
        raise InputError(f"{folder / 'config.json'}: position {config.position} is too large") from None
    wanted = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for file in files:
        with _opened(file) as stored:
            for outer_name in stored.keys():
                name, shown = outer_name.removeprefix("model."), f"{outer_name!r:.80}"
                if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and name not in wanted):
                    continue  # derived from the config; a copy of the tied embeddings
                if name not in wanted:
                    raise InputError(f"{file}: holds {shown}, which a model of its config.json has not")
                shape, expected = shapes[name], list(wanted[name].shape)
                if shape != expected:
                    raise InputError(f"{file}: {shown} has shape {shape}, its config.json says {expected}")
                # Copied to where torch would put it: elsewhere the last bits of a product may differ.
                tensors[name] = stored.get_tensor(outer_name).clone()
                if tensors[name].dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                    raise InputError(f"{file}: {shown} holds {tensors[name].dtype}, weights are due")
    missing = wanted.keys() - tensors.keys()
    if missing:
        raise InputError(f"{folder}: no weights for {', '.join(sorted(missing)[:3])} ({len(missing)} missing)")
    for file in files:
        _check_sum(file)
    model.load_state_dict(tensors, assign=True)
    return model.to(dtype)


@contextmanager
def _opened(file):
    try:
        if not file.is_file():  # a pipe would never answer
            raise OSError("no such file")
        with safe_open(file, framework="pt") as stored:
            yield stored
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: missing, cut short or damaged ({error})") from error


def _shapes(file):
    with _opened(file) as stored:  # reads the header alone
        return {name.removeprefix("model."): stored.get_slice(name).get_shape() for name in stored.keys()}


def _check_sizes(file, config, shapes):
    """Compares config.json with the tensors' own shapes, before a model is built for which no memory suffices."""
    layers = len({name.split(".")[1] for name in shapes if name.startswith("layers.")})
    if config.num_hidden_layers != layers:
        raise InputError(f"{file}: has {layers} layers, its config.json says {config.num_hidden_layers}")
    heads, groups = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    first = {"self_attn.q_proj": heads, "self_attn.k_proj": groups, "mlp.up_proj": config.intermediate_size}
    rows = {"embed_tokens": config.vocab_size, **{f"layers.0.{name}": size for name, size in first.items()}}
    for name, size in rows.items():
        shape, expected = shapes.get(f"{name}.weight"), [size, config.hidden_size]
        if shape not in (None, expected):
            raise InputError(f"{file}: model.{name}.weight has shape {shape}, its config.json says {expected}")


def load_trainer(folder: Path) -> dict:
    """What `save_checkpoint` was given as `trainer`. InputError names the file where it is not that any more."""
    file = folder / TRAINER
    try:
        if not file.is_file():  # a pipe would never answer
            raise FileNotFoundError
        _check_sum(file)
        content = torch.load(file, weights_only=True)
    except InputError:
        raise
    except Exception as error:  # a damaged file raises anything, from EOFError to RuntimeError
        raise InputError(f"{file}: missing, cut short or damaged ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: holds a {type(content).__name__}, not a mapping")
    return content


def read_json(file: Path) -> dict:
    """The mapping in a JSON file; InputError names the file otherwise."""
    try:
        if file.exists() and not (file.is_file() and file.stat().st_size <= MAX_JSON):
            raise ValueError(f"no file of at most {MAX_JSON:,} bytes")
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
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
    known = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
    for key, value in known.items():
        if stored.get(key, value) != value:
            raise InputError(f"{file}: {key} is {stored[key]!r:.60}, only {value!r} is known here")
    if "position" not in stored:
        position, is_qwen3 = _llama_position(file, stored), stored["model_type"] == "qwen3"
        stored = {**LLAMA_DEFAULTS, **stored, "position": position, "qk_norm": is_qwen3}
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
    if stored.get("model_type") not in ("llama", "qwen3"):
        raise InputError(f"{file}: model_type is {stored.get('model_type')!r:.60}, 'llama' and 'qwen3' can be read")
    rope = {}
    for key in ("rope_scaling", "rope_parameters"):
        options = stored.get(key) or {}
        if not isinstance(options, dict):
            raise InputError(f"{file}: {key} is {options!r:.60}, not a mapping")
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
