"""Byte, character and BPE tokenizers, all of them a `tokenizers.Tokenizer` that fits into a tokenizer.json."""

import json
import re
import string
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from base import InputError
from settings import FrozenConfig

if TYPE_CHECKING:
    from numpy import ndarray

END_OF_TEXT = "<|endoftext|>"

_BPE_TRAINING_CHARACTERS = 20_000_000  # more text changes few merges and costs 0.2 s per million
_PIECE_CHARACTERS = 10_000
_LONGEST_PIECE = 100_000  # a longer word is cut: its memory and, for training, its time would have no bound
_BATCH_BYTES = 2_000_000
_MARK = b"\xff"  # no byte of UTF-8
# The pre-tokenizer's words never reach from a non-space into a space, nor from a letter or digit into punctuation,
# and no lookahead of an earlier word gets this far: cutting here leaves every token as it was.
_BPE_BOUNDARY = re.compile(r"\S(?=[ \n])|[A-Za-z0-9一-鿿ぁ-ゖァ-ヺ가-힣](?=[!-/:-@\[-`{-~、。，！？；：])")

# More finely, by pairs of bytes: no token reaches across where _CUTS has a 1 in the row of the first byte's group and
# the column of the second's. Group 5 is of bytes that end no space beyond ASCII; those that may are in 0, where control
# characters are too: not all agree on which of them are spaces. An apostrophe may belong to an 's or 'll.
_MEMBERS = (
    string.ascii_letters.encode(),
    string.digits.encode(),
    string.punctuation.replace("'", "").encode(),
    b"'",
    bytes({*range(0x80, 0x100)} - {*range(0x80, 0x8B), 0x9F, 0xA0, 0xA8, 0xA9, 0xAF}),
    string.whitespace.encode(),
)
_GROUPS = bytes(next((n for n, members in enumerate(_MEMBERS, 1) if byte in members), 0) for byte in range(256))
_CUTS = bytes.fromhex(
    # a 1 . ' é space
    "00 00 00 00 00 00 00 00"
    "00 00 01 01 01 00 01 00"  # letter
    "00 01 00 01 01 00 01 00"  # digit
    "00 01 01 00 00 00 01 00"  # other
    "00 00 01 00 00 00 01 00"  # apostrophe
    "00 00 00 00 00 00 01 00"  # beyond ASCII
    "00 00 00 00 00 00 00 00"  # space
)

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


def token_chunks(tokenizer: Tokenizer, config: TokenizerConfig, documents: Iterable[Document]) -> Iterator["ndarray"]:
    """Token ids of all documents in order, each preceded by end-of-text, in uint32 arrays.

    Documents are cut where no token reaches across, so the ids are those of whole documents. Only in bpe, and only
    where 100,000 characters have no space, newline or punctuation, a token may end that would have gone on.
    """
    import numpy
    import pyarrow

    width = _token_widths(tokenizer, config)
    for pieces in _batches(config, documents):
        text, starts = b"".join(pieces), _word_starts(pieces)
        buffers = [None, pyarrow.py_buffer(starts), pyarrow.py_buffer(text)]
        # Natural text repeats its words: each of a batch is encoded once.
        words = pyarrow.Array.from_buffers(pyarrow.binary(), len(starts) - 1, buffers).dictionary_encode()
        ids = numpy.fromiter(_encode_words(tokenizer, words.dictionary.to_pylist()), numpy.uint32)
        ends = numpy.frombuffer(words.dictionary.buffers()[1], numpy.int32, len(words.dictionary) + 1)
        offsets = numpy.searchsorted(numpy.cumsum(width[ids]), ends, "right").astype(numpy.int32)
        yield pyarrow.ListArray.from_arrays(offsets, ids).take(words.indices).flatten().to_numpy()[1:]


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    """Name and content of the files from which transformers' AutoTokenizer makes the same tokenizer."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",  # where generation needs it
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


def _batches(config, documents):
    """Lists of UTF-8 pieces, some 2 MB in all, with _MARK at the start of each list and of each document."""
    batch, size = [_MARK], 0
    for document in documents:
        batch.append(_MARK)
        for piece in _pieces(config, document):
            batch.append(piece.encode())
            size += len(batch[-1]) + 1
            if size > _BATCH_BYTES:
                yield batch
                batch, size = [_MARK], 0
    yield batch


def _word_starts(pieces):
    """Where words begin in the joined pieces, and their end: int32 offsets in bytes."""
    import numpy

    groups = numpy.frombuffer(b"".join(pieces).translate(_GROUPS), numpy.uint8)
    is_start = numpy.append(True, numpy.frombuffer(_CUTS, bool)[groups[:-1] * 8 + groups[1:]])
    is_start[numpy.cumsum([*map(len, pieces[:-1])], dtype=int)] = True
    return numpy.append(numpy.flatnonzero(is_start), len(groups)).astype(numpy.int32)


def _encode_words(tokenizer, words):
    """The ids of all words, each encoded for itself; the first word is _MARK."""
    texts = [word.decode() for word in words[1:]]
    step = len(texts) // 64 + 1  # enough inputs for every core, and few enough: one for each word takes twice the time
    inputs = [texts[n : n + step] for n in range(0, len(texts), step)]
    encodings = tokenizer.encode_batch_fast(inputs, is_pretokenized=True)
    return chain([tokenizer.token_to_id(END_OF_TEXT)], *(encoding.ids for encoding in encodings))


def _token_widths(tokenizer, config):
    """The UTF-8 bytes that each token id stands for; byte-level tokens have a character for each."""
    import numpy

    width = numpy.empty(tokenizer.get_vocab_size(), numpy.int32)
    for token, number in tokenizer.get_vocab().items():
        width[number] = len(token.encode() if config.kind == "char" else token)
    width[tokenizer.token_to_id(END_OF_TEXT)] = len(_MARK)
    return width
