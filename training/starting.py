"""What a run starts from: its config with what a folder, the text and the machine fill in, and the first model."""

import torch
from pydantic import ValidationError

from base import InputError, expanded, find_checkpoint
from configs import Config, load_config
from data.corpus import Corpus
from data.tokenizer import text_ids
from model.checkpoint import load_checkpoint, stored_config
from model.config import ModelConfig
from model.transformer import Transformer, with_config
from settings import one_line


def fill_in_model(config: Config) -> Config:
    """The config with the model of train.init_from in place of the keys that it leaves out.

    max_position_embeddings and position's base and scaling may be other ones; a scaling is of the length that the
    folder was trained on. Whether documents are kept apart is the config's to say, as train.document_mask is.
    A folder that is gone is not needed once the run has a config.yaml, which has its model.
    InputError: another key that differs from the folder's.
    """
    folder, wanted = config.train.init_from, config.model
    if folder is None:
        return config
    try:
        theirs = stored_config(find_checkpoint(expanded(folder)))
    except InputError as error:
        if not (own := config.folder / "config.yaml").is_file():
            raise InputError(f"train.init_from: {error}") from None
        theirs = load_config(own).model
    position, length = theirs.position.model_dump(), theirs.max_position_embeddings
    if scaling := position.get("scaling"):
        length = scaling["original_max_position_embeddings"] or length
    chosen = {"model": wanted.model_fields_set - {"position"}}
    chosen |= {"model.position": wanted.position.model_fields_set} if "position" in wanted.model_fields_set else {}
    for prefix, keys in chosen.items():
        ours, others = (wanted, theirs) if prefix == "model" else (wanted.position, theirs.position)
        for key in sorted(keys - {"max_position_embeddings", "base", "scaling", "document_start_token_id"}):
            if getattr(ours, key) not in (None, other := getattr(others, key, None)):
                raise InputError(
                    f"{prefix}.{key}: {getattr(ours, key)!r}, but train.init_from {folder!r} has {other!r}"
                )
    position |= wanted.position.model_dump(include=chosen.get("model.position", set()))
    if position.get("scaling") and position["scaling"]["original_max_position_embeddings"] is None:
        position["scaling"] |= {"original_max_position_embeddings": length}
    kept = wanted.model_dump(include=chosen["model"] & {"max_position_embeddings"} | {"document_start_token_id"})
    try:
        model = ModelConfig(**{**theirs.model_dump(), **kept, "position": position})
    except ValidationError as error:
        raise InputError(f"model: {one_line(error)}") from None
    return config.model_copy(update={"model": model})


def fit_to_corpus(config: Config, corpus: Corpus) -> Config:
    """The config with the model of train.init_from and the vocabulary size filled in.

    InputError if a source's split is shorter than one context.
    """
    config = fill_in_model(config)
    needed, model = config.model.max_position_embeddings + 1, config.model
    for part in corpus.parts:
        if min(len(part.train), len(part.val)) < needed:
            raise InputError(
                f"data.source: {part.source} has {len(part.train)} tokens for training and {len(part.val)} "
                f"for validation; each needs model.max_position_embeddings + 1 = {needed}"
            )
    vocab_size = 1 + max(text_ids(corpus.tokenizer, corpus.end_of_text))
    if model.vocab_size is not None and model.vocab_size < vocab_size:
        raise InputError(f"model.vocab_size: expected at least the tokenizer's {vocab_size}, got {model.vocab_size}")
    return config.model_copy(update={"model": model.model_copy(update={"vocab_size": model.vocab_size or vocab_size})})


def fill_in_threads(config: Config, resume: bool) -> Config:
    """The config with the number of threads filled in: that of the run being resumed, else PyTorch's own."""
    before = load_config(config.folder / "config.yaml").train.threads if resume else None
    threads = config.train.threads or before or torch.get_num_threads()
    return config.model_copy(update={"train": config.train.model_copy(update={"threads": threads})})


def first_model(init_from: str | None, config: ModelConfig, seed: int) -> Transformer:
    """A model of this config, with new weights or those of a folder. InputError: the folder's do not fit."""
    if init_from is None:
        return Transformer(config, seed)
    return with_config(load_checkpoint(find_checkpoint(expanded(init_from))), config)
