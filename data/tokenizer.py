"""Byte, character and BPE tokenizers, all of them a `tokenizers.Tokenizer` that fits into a tokenizer.json."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from base import FrozenConfig, InputError

END_OF_TEXT = "<|endoftext|>"

_BPE_TRAINING_CHARACTERS = 20_000_000  # more text changes few merges and costs 0.2 s per million
_PIECE_CHARACTERS = 10_000
_LONGEST_PIECE = 100_000  # a longer word is cut: its memory and, for training, its time would have no bound
_BATCH_CHARACTERS = 640_000
# The pre-tokenizer's words never reach from a non-space into a space, nor from a letter or digit into punctuation,
# and no lookahead of an earlier word gets this far: cutting here leaves every token as it was.
_BPE_BOUNDARY = re.compile(r"\S(?=[ \n])|[A-Za-z0-9一-鿿ぁ-ゖァ-ヺ가-힣](?=[!-/:-@\[-`{-~、。，！？；：])")

Document = str | Iterable[str]  # whole, or, where it is long, in parts that can be iterated over again and again


class TokenizerConfig(FrozenConfig):
    kind: Literal["byte", "char", "bpe"] = "bpe"
    """One token per UTF-8 byte, one per character of the corpus, or byte-level byte-pair encoding."""
    vocab_size: int = Field(4096, ge=257)
    """Tokens a bpe tokenizer may have, the 256 bytes and end-of-text included; byte and char have their own."""


def parts(document: Document) -> Iterable[str]:
    """The text of a document, in one part or several."""
    return (document,) if isinstance(document, str) else document


def train_tokenizer(config: TokenizerConfig, documents: Iterable[Document]) -> Tokenizer:
    """Makes the tokenizer; the same documents give the same one.

    byte ignores the documents, char takes every character in them, bpe learns from the first 20 million characters.
    """
    tokenizer = {"byte": _byte, "char": _char, "bpe": _bpe}[config.kind](config, documents)
    return _plain_text(tokenizer)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Reads folder/tokenizer.json, ours or another Hugging Face model's. InputError: missing or broken."""
    path = Path(folder) / "tokenizer.json"
    try:
        if not path.is_file():  # a pipe would never answer
            raise OSError("no such file")
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{path}: not a readable tokenizer.json: {error}") from None
    tokenizer.no_truncation()  # a foreign file may ask for either, and would cut or fill up a prompt
    tokenizer.no_padding()
    return _plain_text(tokenizer)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a text, with what the tokenizer's own post-processor adds (ours have none).

    InputError: characters that a char tokenizer doesn't know.
    """
    try:
        return tokenizer.encode(text).ids
    except Exception:  # tokenizers raises nothing narrower
        unknown = sorted(set(text) - tokenizer.get_vocab().keys(), key=text.index)
        raise InputError(f"the tokenizer has no token for {', '.join(map(ascii, unknown[:5]))}") from None


def token_chunks(tokenizer: Tokenizer, config: TokenizerConfig, documents: Iterable[Document]) -> Iterator[list[int]]:
    """Token ids of all documents in order, each preceded by end-of-text, as lists of some 100,000 ids.

    Documents are cut where no token reaches across, so the ids are those of whole documents. Only in bpe, and only
    where 100,000 characters have no space, newline or punctuation, a token may end that would have gone on.
    """
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    pieces = ((n == 0, piece) for document in documents for n, piece in enumerate(_pieces(config, document)))
    for batch in _batches(pieces):
        encodings = tokenizer.encode_batch_fast([piece for _, piece in batch])
        ids = []
        for (is_first, _), encoding in zip(batch, encodings):
            ids += [end_of_text] * is_first + encoding.ids
        yield ids


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """Name and content of the files from which transformers' AutoTokenizer makes the same tokenizer."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }


def _plain_text(tokenizer):
    # Not part of tokenizer.json: without it "<|endoftext|>" in a user's text would end the text.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _byte(config, documents):
    # Byte-level tokenizers write bytes that are no visible Latin-1 characters as the characters from 256 on.
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {**{byte: chr(byte) for byte in visible}, **{byte: chr(256 + n) for n, byte in enumerate(hidden)}}
    tokenizer = Tokenizer(models.BPE({characters[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _char(config, documents):
    characters = set()
    for document in documents:
        for part in parts(document):
            characters.update(part)
    tokenizer = Tokenizer(models.WordLevel({character: n for n, character in enumerate(sorted(characters))}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _bpe(config, documents):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for document in documents for piece in _pieces(config, document))
    tokenizer.train_from_iterator(_first(pieces, _BPE_TRAINING_CHARACTERS), trainer)
    return tokenizer


def _first(texts, characters):
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def _pieces(config, document):
    text = ""
    for part in parts(document):
        text, start = text + part, 0
        while end := _end_of_piece(config, text, start):
            yield text[start:end]
            start = end
        text = text[start:]
    yield text


def _end_of_piece(config, text, start):
    """Where the piece that begins at start ends; 0 where the text, as far as it is known, ends first."""
    end, longest = start + _PIECE_CHARACTERS, start + _LONGEST_PIECE
    if len(text) <= end:
        return 0
    if config.kind != "bpe":
        return end
    match = _BPE_BOUNDARY.search(text, end, longest)
    return match.end() if match else longest if len(text) > longest else 0


def _batches(pieces):
    batch, characters = [], 0
    for is_first, piece in pieces:
        batch.append((is_first, piece))
        characters += len(piece) + 1
        if characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch
