"""Byte, character and BPE tokenizers, all of them a `tokenizers.Tokenizer` that fits into a tokenizer.json."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from base import InputError, expanded, find_checkpoint, read_optional_json
from data.config import TokenizerConfig
from data.documents import END_OF_TEXT, Document, parts
from data.encoding import pieces, without_token

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


@dataclass(frozen=True)
class CorpusTokenizer:
    """A tokenizer, the id of the token that parts documents, and what a checkpoint takes over: the text of its files, by
    name.
    """

    tokenizer: Tokenizer
    end_of_text: int
    files: dict[str, str]

    @classmethod
    def ours(cls, tokenizer: Tokenizer) -> "CorpusTokenizer":
        """Of one that `train_tokenizer` made."""
        return cls(tokenizer, tokenizer.token_to_id(END_OF_TEXT), tokenizer_files(tokenizer))

    @classmethod
    def of(cls, folder: str) -> "CorpusTokenizer":
        """Of a folder that generate.py reads. InputError: missing or broken, or without a token that ends a text."""
        place = find_checkpoint(expanded(folder))
        tokenizer = load_tokenizer(place)
        own, count = tokenizer.token_to_id(END_OF_TEXT), 1 + highest_id(tokenizer)
        ends = [*dict.fromkeys([own] * (own is not None) + named_tokens(place, tokenizer, "eos", count))]
        if not ends:
            raise InputError(
                f"{place}: expected a token to part documents: {END_OF_TEXT} in tokenizer.json, an eos_token in "
                "tokenizer_config.json, or an eos_token_id in config.json"
            )
        kept = (place / name for name in ("tokenizer_config.json", "chat_template.jinja"))
        files = tokenizer_files(tokenizer, tokenizer.id_to_token(ends[0]))
        for file in filter(Path.is_file, kept):
            try:
                files[file.name] = file.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise InputError(f"{file}: not readable: {error}") from None
        # documents begin with their end-of-text; generate.py and transformers stop at any of these
        generation = {"bos_token_id": ends[0], "eos_token_id": ends}
        return cls(tokenizer, ends[0], files | {"generation_config.json": json.dumps(generation, indent=2) + "\n"})


def named_tokens(folder: Path, tokenizer: Tokenizer, name: str, vocab_size: int) -> list[int]:
    """Ids of the tokens that begin ("bos") or end ("eos") a text, from every file in the folder that names any.

    InputError, naming the file: not a token, or beyond a model of vocab_size tokens.
    """
    found, key = [], f"{name}_token_id"
    for file in ("generation_config.json", "config.json"):
        value = read_optional_json(folder / file).get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(each) is int and each >= 0 for each in ids):
            raise InputError(f"{folder / file}: {key}: expected a token id or a list of them, got {value!r:.60}")
        check_ids(folder / file, ids, vocab_size)
        found += ids
    file, key = "tokenizer_config.json", f"{name}_token"
    value = read_optional_json(folder / file).get(key)
    if value is not None:
        text = value.get("content") if isinstance(value, dict) else value
        token = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if token is None:
            raise InputError(f"{folder / file}: {key}: expected a token in tokenizer.json, got {value!r:.60}")
        check_ids(folder / file, [token], vocab_size)
        found.append(token)
    return found


def check_ids(file: Path, ids: list[int], vocab_size: int) -> None:
    """InputError if an id in the file is beyond a model of vocab_size tokens."""
    if max(ids, default=0) >= vocab_size:
        raise InputError(f"{file}: has token id {max(ids)}, but the model has only {vocab_size} tokens")


def highest_id(tokenizer: Tokenizer) -> int:
    """The highest token id, which where ids have gaps is not their number; -1 without any."""
    return max(tokenizer.get_vocab().values(), default=-1)


def text_ids(tokenizer: Tokenizer, end_of_text: int) -> set[int]:
    """All ids that texts become: of special tokens, that which parts documents and that for what is unknown."""
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_id", tokenizer.token_to_id(model.get("unk_token") or ""))
    return {*tokenizer.get_vocab().values()} - special | {end_of_text} | {unknown} - {None}


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a text, plus any that another model's post-processor adds (ours have none), unless told not to.

    InputError: characters or words that the tokenizer has no token for.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    except Exception:  # tokenizers raises nothing narrower
        raise InputError(without_token(tokenizer, [text])) from None


def tokenizer_files(tokenizer: Tokenizer, end_of_text: str = END_OF_TEXT) -> dict[str, str]:
    """Name and content of the files from which transformers' AutoTokenizer builds the same tokenizer."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_of_text,
        "eos_token": end_of_text,
        "pad_token": end_of_text,
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
