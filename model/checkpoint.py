"""Checkpoint folders, in the format of Hugging Face."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from base import InputError, complete_checkpoints, read_json, reading, writing
from model.config import ModelConfig
from model.huggingface import check_agreement, read_config, transformers_keys
from model.transformer import Transformer, with_position

WEIGHTS = "model.safetensors"
TRAINER = "trainer.pt"
TOKENIZER = "tokenizer.json"
SUMS = "SHA256SUMS"  # of the three, as `sha256sum --check` reads it: a flipped bit in a weight shows nowhere else


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
            _flush_names(folder.parent)
    except InputError:
        shutil.rmtree(beside, ignore_errors=True)
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _write(folder, model, files, trainer):
    folder.mkdir(parents=True)
    for name, text in {"config.json": json.dumps(_config_json(model, files), indent=2), **files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    tensors = {_outer_name(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None
    with suppress(OSError):  # where files have another owner than who writes them
        shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors makes files only their owner can read
    if trainer is not None:
        try:
            with (folder / TRAINER).open("wb") as file:
                torch.save(trainer, file)
        except RuntimeError as error:  # torch's own, on top of what the file raised
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    sums = [f"{_sum(folder / name)}  {name}\n" for name in (WEIGHTS, TRAINER, TOKENIZER) if (folder / name).exists()]
    (folder / SUMS).write_text("".join(sums), encoding="utf-8")
    for path in folder.iterdir():
        with path.open("r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
    _flush_names(folder)


def _flush_names(folder):
    if hasattr(os, "O_DIRECTORY"):  # Windows has none, and opens no folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):  # file systems that flush no folders
                raise
        finally:
            os.close(descriptor)


def _sum(file):
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@reading()
def _check_sum(file):
    sums = file.with_name(SUMS)
    if not sums.is_file():  # folders of others have none
        return
    lines = sums.read_text("utf-8", "replace").splitlines()
    if file.name == TOKENIZER and not any(line.endswith(f"  {TOKENIZER}") for line in lines):
        return  # a checkpoint from before it had one
    if f"{_sum(file)}  {file.name}" not in lines:
        raise InputError(f"{file}: damaged or changed: its SHA-256 differs from that in {SUMS}")


def best_checkpoint(run: Path) -> Path | None:
    """The checkpoint of a run of ours whose step's evaluation gave the lowest validation loss, if one was evaluated."""
    complete = complete_checkpoints(run)
    losses = {row["step"]: row["val_loss"] for row in read_rows(run / "metrics.jsonl") if "val_loss" in row}
    losses = {step: loss for step, loss in losses.items() if step in complete and math.isfinite(loss)}
    return complete[min(losses, key=losses.get)] if losses else None


def load_checkpoint(folder: Path, position_options: dict | None = None) -> Transformer:
    """The model of a checkpoint folder, ours or one of `transformers`, on the CPU, with weights in float32.

    position_options replace those the model was trained with, as in `with_position`.
    Raises InputError naming the file where one is missing, cut short, damaged, or not what its config says.
    """
    file, files = folder / "config.json", _weight_files(folder)
    stored, places = read_json(file), _places(files)
    config = _tied_as_stored(read_config(file, stored), places)
    layers = len({name.split(".")[1] for name in places if name.startswith("layers.")})
    if config.num_hidden_layers != layers:
        raise InputError(f"{files[0]}: expected {config.num_hidden_layers} layers, as in config.json, got {layers}")
    try:
        model = Transformer(config, seed=None)
    except RuntimeError:
        raise InputError(f"{file}: position: {config.position} is too large") from None
    check_agreement(file, stored, model)
    wanted = model.state_dict()
    for name, (place, shown, shape) in places.items():
        if name not in wanted:
            raise InputError(f"{place}: holds {shown!r:.80}, which the model in config.json does not have")
        if shape != (expected := list(wanted[name].shape)):
            raise InputError(f"{place}: {shown!r:.80}: expected shape {expected}, as in config.json, got {shape}")
    if missing := wanted.keys() - places.keys():
        raise InputError(f"{folder}: no weights for {', '.join(sorted(missing)[:3])} ({len(missing)} missing)")
    tensors = {name: tensor for place in files for name, tensor in _tensors(place, places).items()}
    for place in (*files, folder / TOKENIZER):
        if place.is_file():
            _check_sum(place)
    model.load_state_dict(tensors, assign=True)
    model = model.to(torch.float32)
    return with_position(model, position_options) if position_options else model


def stored_config(folder: Path) -> ModelConfig:
    """What `load_checkpoint` would make of a folder; reads no weights but those of two matrices that may be one."""
    file = folder / "config.json"
    return _tied_as_stored(read_config(file, read_json(file)), _places(_weight_files(folder)))


def _places(files):
    """Each tensor by its name in the model: the file it is in, its name and its shape there. Reads headers alone."""
    places = {}
    for file in files:
        with _opened(file) as stored:
            for shown in stored.keys():
                name = _inner_name(shown)
                if name in places:
                    raise InputError(f"{file}: holds {shown!r:.80}, as does {places[name][0].name}")
                if not name.endswith("rotary_emb.inv_freq"):  # derived from the config
                    places[name] = file, shown, stored.get_slice(shown).get_shape()
    return places


def _tensors(file, places):
    tensors = {}
    with _opened(file) as stored:
        for name, (place, shown, _) in places.items():
            if place == file:
                # Copied to where torch would put it: elsewhere the last bits of a product may differ.
                tensors[name] = stored.get_tensor(shown).clone()
                if tensors[name].dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                    raise InputError(
                        f"{file}: {shown!r:.80}: expected floating-point weights, got {tensors[name].dtype}"
                    )
    return tensors


def _tied_as_stored(config, places):
    """The config, untied where lm_head differs; of a shared matrix that has either name or both, one place is left."""
    head, embedding = "lm_head.weight", "embed_tokens.weight"
    if config.tie_word_embeddings and head in places:
        if embedding in places:
            one, other = (_tensors(places[name][0], {name: places[name]})[name] for name in (head, embedding))
            if one.dtype != other.dtype or not torch.equal(one, other):
                return config.model_copy(update={"tie_word_embeddings": False})
        places[embedding] = places.pop(head)
    return config


@contextmanager
def _opened(file):
    try:
        if not file.is_file():  # a pipe would never answer
            raise OSError("no such file")
        with safe_open(file, framework="pt") as stored:
            yield stored
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: missing, cut short or damaged ({error})") from error


def load_trainer(folder: Path) -> dict:
    """What `save_checkpoint` was given as `trainer`. InputError names the file where it is not that any more."""
    file = folder / TRAINER
    if file.is_file():
        _check_sum(file)
    try:
        if not file.is_file():  # a pipe would never answer
            raise FileNotFoundError
        content = torch.load(file, map_location="cpu", weights_only=True)  # perhaps another device made it
    except Exception as error:  # a damaged file raises anything, from EOFError to RuntimeError
        raise InputError(f"{file}: missing, cut short or damaged ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: expected a mapping, got {type(content).__name__}")
    return content


def read_rows(file: Path) -> list[dict]:
    """All complete rows of a metrics.jsonl; InputError if they cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines[:-1]]  # a crash has cut off what follows the last newline
        if wrong := [number for number, row in enumerate(rows, 1) if not _is_logged(row)]:
            raise ValueError(f"line {wrong[0]} lacks step or tokens, or has no number where one belongs")
        return rows
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: missing or damaged ({error})") from None


def _is_logged(row) -> bool:
    if not (isinstance(row, dict) and all(isinstance(row.get(key), int) for key in ("step", "tokens"))):
        return False
    of_evaluation = ("val_loss", "val_bits_per_byte") if "val_loss" in row else ()
    of_step = [key for key in ("train_loss", "grad_norm", "learning_rate") if row.get(key) is not None]
    return all(isinstance(row.get(key), int | float) for key in (*of_evaluation, *of_step))


def _outer_name(name: str) -> str:
    return name if name.startswith(("lm_head.", "position.")) else f"model.{name}"


def _inner_name(name: str) -> str:
    """The model's own name of a tensor, without what `transformers`, DistributedDataParallel and compilers prefix."""
    return re.sub(r"^((model|module|_orig_mod)\.)+", "", name)


def _config_json(model: Transformer, files: dict[str, str]) -> dict:
    tokenizer = json.loads(files.get(TOKENIZER, "{}"))
    token_ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    names = json.loads(files.get("tokenizer_config.json", "{}"))
    # a token is its text, or a mapping in which that is the content
    names = {name: token.get("content") if isinstance(token, dict) else token for name, token in names.items()}
    return {
        # where `transformers` has no such model, a type it does not know keeps it from building another one
        "model_type": "whereabouts",
        **model.config.model_dump(mode="json"),
        "hidden_act": "silu",
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": token_ids.get(names.get("bos_token")),
        "eos_token_id": token_ids.get(names.get("eos_token")),
        "pad_token_id": None,
        "torch_dtype": "float32",
        **transformers_keys(model.config, model.position),
    }


def _weight_files(folder: Path) -> list[Path]:
    whole, index = folder / WEIGHTS, folder / f"{WEIGHTS}.index.json"
    if (
        whole.is_file() or not index.is_file()
    ):  # an index may be left over; `transformers` looks for this file first, too
        return [whole]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{index}: weight_map: expected the name of a file for each tensor")
    return [folder / Path(name).name for name in sorted(set(names.values()))]
