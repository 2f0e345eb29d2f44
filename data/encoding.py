"""Fast encoding: text is cut where no token reaches across, and each distinct word is encoded once, since text repeats.

documents   "the cat, the cats", "the cat"
batch       ⊢ ⊢ "the cat, the cats" ⊢ "the cat"          ⊢ is _MARK: one for the batch, one for each document
words       ⊢|⊢|the| cat|,| the| cats|⊢|the| cat         cut where _CUTS allows and where pieces meet
distinct    0 ⊢    1 the   2 _cat   3 ,    4 _the   5 _cats
their ids   [256]  [301]   [290]    [44]   [270]    [290 115]        only these are encoded
in order    0  0  1  2  3  4  5  0  1  2  →  256 301 290 44 270 290 115 256 301 290        less the batch's ⊢
"""

import re
import string
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import numpy
from tokenizers import Tokenizer

from base import InputError
from data.config import TokenizerConfig
from data.documents import END_OF_TEXT, Document, parts

_PIECE_CHARACTERS = 10_000
_LONGEST_PIECE = 100_000  # a longer word is cut, or its memory and, in training, its time would have no bound
_BATCH_BYTES = 2_000_000  # a preparation that was killed before a change of it would go on at a wrong place
_MARK = b"\xff"  # never a byte of UTF-8

# A word of the pre-tokenizer never goes on from a non-space to a space, nor from a letter or digit to punctuation, and
# no lookahead of an earlier word reaches this far: a cut here leaves every token as it was.
# The word of another model's tokenizer may go on from punctuation to a newline.
_FOLDER_BOUNDARY = re.compile(r"\S(?= )")
_BPE_BOUNDARY = re.compile(r"\S(?=[ \n])|[A-Za-z0-9一-鿿ぁ-ゖァ-ヺ가-힣](?=[!-/:-@\[-`{-~、。，！？；：])")

# A finer cut, between two bytes: no token reaches across where _CUTS has a 1 in the row of the first byte's group and
# the column of the second's. Group 0 holds control characters and the bytes in which a space beyond ASCII may end,
# since libraries disagree on which of them are spaces. An apostrophe may begin 's or 'll.
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


class Chunk(NamedTuple):
    """ids: uint32 token ids; bytes: of the text that they stand for; documents: that begin in it; is_last: of a full `room`."""

    ids: numpy.ndarray
    bytes: int
    documents: int
    is_last: bool


def token_chunks(
    tokenizer: Tokenizer,
    config: TokenizerConfig,
    documents: Iterable[Document],
    first: int = 0,
    end: int | None = None,
    room: int | None = None,
) -> Iterator[Chunk]:
    """Token ids of all documents in order, each preceded by end-of-text, from the chunk of number `first` on.

    end: that token's id; None: of END_OF_TEXT. room: at most so many tokens, in whole documents but for one that spans
    chunks.

    The ids are those of whole documents. Only in bpe, and only where 100,000 characters have no space, newline or
    punctuation, a token may be cut short. The tokenizer of a folder is cut before spaces, which changes no token where
    a space begins a word; one that puts a space before each text (Llama 2's) does so every 10,000 characters.
    """
    end = tokenizer.token_to_id(END_OF_TEXT) if end is None else end
    encode = _encoder(tokenizer, config, end)
    for batch in islice(_batches(config, documents), first, None):
        ids, is_full = encode(batch), False
        if room is not None and (is_full := len(ids) > room):
            starts = numpy.flatnonzero(ids[: room + 1] == end)  # where documents begin, so where earlier ones end
            ids = ids[: starts[-1] if len(starts) else 0]
            places = [place for place, piece in enumerate(batch) if piece == _MARK]
            batch = batch[: places[len(starts)] if len(starts) else 1]
        room = room and room - len(ids)
        marks = batch.count(_MARK)
        yield Chunk(ids, sum(map(len, batch)) - marks, marks - 1, is_full)
        if is_full:
            return


def _encoder(tokenizer, config, end):
    """A function from a batch to its ids, without that of the batch's own _MARK."""
    import pyarrow  # takes 0.1 s to load, for nothing where text is in the cache or only generated

    width = None if config.folder else _token_widths(tokenizer, config)

    def pieces_alone(batch):
        texts = [piece.decode() for piece in batch[1:] if piece != _MARK]
        try:
            found = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        except Exception:  # tokenizers raises nothing narrower
            reason = without_token(tokenizer, texts)
            raise InputError(f"data.tokenizer.folder {config.folder!r}: {reason}") from None
        ids = ([end] if piece == _MARK else next(found).ids for piece in batch[1:])
        return numpy.fromiter(chain.from_iterable(ids), numpy.uint32)

    def bytes_themselves(batch):
        ids = numpy.frombuffer(b"".join(batch[1:]), numpy.uint8).astype(numpy.uint32)
        ids[ids == _MARK[0]] = end
        return ids

    def encode(batch):
        text, starts = b"".join(batch), _word_starts(batch)
        buffers = [None, pyarrow.py_buffer(starts), pyarrow.py_buffer(text)]
        words = pyarrow.Array.from_buffers(pyarrow.binary(), len(starts) - 1, buffers).dictionary_encode()
        ids = numpy.fromiter(_encode_words(tokenizer, words.dictionary.to_pylist()), numpy.uint32)
        # The ids of the distinct words are one long list: it is the bytes they stand for that tell where a word ends.
        ends = numpy.frombuffer(words.dictionary.buffers()[1], numpy.int32, len(words.dictionary) + 1)
        offsets = numpy.searchsorted(numpy.cumsum(width[ids]), ends, "right").astype(numpy.int32)
        of_words = pyarrow.ListArray.from_arrays(_as_arrow(offsets), _as_arrow(ids))
        all_ids = of_words.take(words.indices).flatten()
        return numpy.frombuffer(all_ids.buffers()[1], numpy.uint32, len(all_ids))[1:]

    return pieces_alone if config.folder else bytes_themselves if config.kind == "byte" else encode


def without_token(tokenizer: Tokenizer, texts: list[str]) -> str:
    """What is wrong with texts that a tokenizer fails on: the characters or words, up to five, that it has no token for."""
    found = dict.fromkeys(piece for text in texts for piece in _pre_tokenized(tokenizer, text))
    unknown = islice((f"{ascii(piece):.60}" for piece in found if _fails(tokenizer, piece)), 5)
    return f"the tokenizer has no token for {', '.join(unknown)}"


def _fails(tokenizer, text):
    try:
        tokenizer.encode(text)
    except Exception:
        return True
    return False


def _pre_tokenized(tokenizer, text):
    try:
        return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    except Exception:  # it has no pre-tokenizer, or the text an unpaired surrogate
        return text


def _as_arrow(numbers):
    """A NumPy array without a copy, and without the import of pandas that pyarrow.array and to_numpy begin with."""
    import pyarrow

    buffers = [None, pyarrow.py_buffer(numbers)]
    return pyarrow.Array.from_buffers(pyarrow.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def _batches(config, documents):
    """Lists of UTF-8 pieces, some 2 MB in all, with _MARK at the start of each list and of each document."""
    batch, size = [_MARK], 0
    for document in documents:
        batch.append(_MARK)
        for piece in pieces(config, document):
            batch.append(piece.encode())
            size += len(batch[-1]) + 1
            if size > _BATCH_BYTES:
                yield batch
                batch, size = [_MARK], 0
    yield batch


def pieces(config: TokenizerConfig, document: Document) -> Iterator[str]:
    """The text of a document in pieces of some 10,000 characters, cut where no token reaches across."""
    text = ""
    for part in parts(document):
        text, start = text + part, 0
        while end := _end_of_piece(config, text, start):
            yield text[start:end]
            start = end
        text = text[start:]
    yield text


def _end_of_piece(config, text, start):
    """Where the piece that begins at start ends; 0 if the text, as far as it is known, ends first."""
    end, longest = start + _PIECE_CHARACTERS, start + _LONGEST_PIECE
    if len(text) <= end:
        return 0
    if config.kind != "bpe" and not config.folder:
        return end
    match = (_FOLDER_BOUNDARY if config.folder else _BPE_BOUNDARY).search(text, end, longest)
    return match.end() if match else longest if len(text) > longest else 0


def _word_starts(batch):
    """Where words begin in the joined pieces, and where the last one ends: int32 offsets in bytes."""
    groups = numpy.frombuffer(b"".join(batch).translate(_GROUPS), numpy.uint8)
    is_start = numpy.append(True, numpy.frombuffer(_CUTS, bool)[groups[:-1] * 8 + groups[1:]])
    is_start[numpy.cumsum([*map(len, batch[:-1])], dtype=int)] = True
    return numpy.append(numpy.flatnonzero(is_start), len(groups)).astype(numpy.int32)


def _encode_words(tokenizer, words):
    """The ids of all words, each encoded by itself; the first word is _MARK."""
    texts = [word.decode() for word in words[1:]]
    step = len(texts) // 64 + 1  # enough inputs for every core, but few: one for each word takes twice the time
    inputs = [texts[n : n + step] for n in range(0, len(texts), step)]
    encodings = tokenizer.encode_batch_fast(inputs, is_pretokenized=True)
    return chain([tokenizer.token_to_id(END_OF_TEXT)], *(encoding.ids for encoding in encodings))


def _token_widths(tokenizer, config):
    """The UTF-8 bytes that each token id stands for; byte-level tokens have one character per byte."""
    width = numpy.empty(tokenizer.get_vocab_size(), numpy.int32)
    for token, number in tokenizer.get_vocab().items():
        width[number] = len(token.encode() if config.kind == "char" else token)
    width[tokenizer.token_to_id(END_OF_TEXT)] = len(_MARK)
    return width
