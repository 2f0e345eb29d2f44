"""Byte, character and BPE tokenizers, all of them a `tokenizers.Tokenizer` that fits into a tokenizer.json."""

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from base import InputError
from data.config import TokenizerConfig
from data.documents import END_OF_TEXT, Document, parts
from data.encoding import pieces

_BPE_TRAINING_CHARACTERS = 20_000_000  # more text changes few merges and costs 0.2 s per million


def train_tokenizer(config: TokenizerConfig, *texts: Iterable[Document]) -> Tokenizer:
    """Trains a tokenizer on the documents of one text or several; the same documents always give the same one.

    byte ignores the documents, char takes every character in them, bpe learns from the first 20 million characters: of
    n texts, from the first 20/n million of each.
    """
    tokenizer = {"byte": _byte, "char": _char, "bpe": _bpe}[config.kind](config, texts)
    tokenizer.encode_special_tokens = True  # or "<|endoftext|>" in a text would end it; tokenizer.json has no such key
    return tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Reads folder/tokenizer.json, ours or that of another Hugging Face model. InputError: missing or broken."""
    path = Path(folder) / "tokenizer.json"
    try:
        if not path.is_file():  # a pipe would never answer
            raise OSError("no such file")
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{path}: not a readable tokenizer.json: {error}") from None
    tokenizer.no_truncation()  # another model's file may set either, which would cut or pad a prompt
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a text, plus any that another model's post-processor adds (ours have none), unless told not to.

    InputError: characters that are not in a char tokenizer's vocabulary.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    except Exception:  # tokenizers raises nothing narrower
        unknown = sorted(set(text) - tokenizer.get_vocab().keys(), key=text.index)
        raise InputError(f"the tokenizer has no token for {', '.join(map(ascii, unknown[:5]))}") from None


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """Name and content of the files from which transformers' AutoTokenizer builds the same tokenizer."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",  # as generation needs it
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }


def _byte(config, texts):
    # Byte-level tokenizers write a byte that is not a visible Latin-1 character as one of the characters from 256 on.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {**{byte: chr(byte) for byte in visible}, **{byte: chr(256 + n) for n, byte in enumerate(hidden)}}
    tokenizer = Tokenizer(models.BPE({characters[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _char(config, texts):
    characters = set()
    for document in chain(*texts):
        for part in parts(document):
            characters.update(part)
    tokenizer = Tokenizer(models.WordLevel({character: n for n, character in enumerate(sorted(characters))}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _bpe(config, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    share = _BPE_TRAINING_CHARACTERS // len(texts)
    tokenizer.train_from_iterator(chain(*(_first(config, text, share) for text in texts)), trainer)
    return tokenizer


def _first(config, documents, characters):
    for piece in chain.from_iterable(pieces(config, document) for document in documents):
        yield piece
        characters -= len(piece)
        if characters <= 0:
            return
