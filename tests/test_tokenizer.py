import itertools
import json
import subprocess
import sys

import numpy
import pytest
from hypothesis import example, given, settings, strategies
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from base import InputError
from data import encoding
from data import tokenizer as module
from data.config import TokenizerConfig
from data.documents import END_OF_TEXT
from data.encoding import pieces, token_chunks
from data.tokenizer import encode, load_tokenizer, text_ids, tokenizer_files, train_tokenizer

KINDS = ("byte", "char", "bpe")
SAMPLE = f"  The quick\t fox's don't-care\r\n\r\n\n   naïve 北京 \x00 😀👩‍👩‍👧 e\u0301 \u2028\ufeff {END_OF_TEXT}\n  "
CORPUS = [SAMPLE, "the theme of the thesis is the other theory\n" * 30, "x = {'a': 1}\n"]
AWKWARD = [
    "",
    " ",
    " " * 100 + "x",
    "a" + " " * 37 + "b" + "\n" * 23 + "c \n \n\t d\r\n\r\n  ",
    "wordwithoutanyend" * 9,
    "北京大学，你好。" * 9,
    "1,2,[3],{'it's':'we'll'}_a_b!!??..." * 4,
    "x\u00a0\u00a0 y\u2003 \u3000z \x1c \x85 w\u200b v",
    "don't we'll I'm you've they're he'd " * 3 + "'s 't '' 'll",
    SAMPLE * 3,
]


def trained(kind, vocab_size=400):
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=vocab_size), CORPUS + AWKWARD)


def tokens(tokenizer, kind, documents):
    """The ids of token_chunks as one list."""
    chunks = token_chunks(tokenizer, TokenizerConfig(kind=kind), documents)
    return numpy.concatenate([chunk.ids for chunk in chunks]).tolist()


def saved(tokenizer, folder):
    for name, text in tokenizer_files(tokenizer).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", ("byte", "bpe"))
def test_any_unicode_text_survives(kind):
    """Characters never seen in training, every plane, every control character."""
    text = "".join(map(chr, [*range(0x3000), 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]))
    tokenizer = trained(kind)
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_byte_ids_are_the_bytes():
    tokenizer = trained("byte")
    assert tokenizer.get_vocab_size() == 257 and tokenizer.token_to_id(END_OF_TEXT) == 256
    everything = "".join(map(chr, range(0x800))) + "\uffff\U0010ffff"  # all bytes that UTF-8 uses but F1 to F3
    assert encode(tokenizer, everything) == list(everything.encode())


def test_char_ids_count_the_sorted_characters():
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["ba\n", "", "cab"])
    assert encode(tokenizer, "\nabc") == [0, 1, 2, 3]
    assert tokenizer.token_to_id(END_OF_TEXT) == 4 and tokenizer.get_vocab_size() == 5


def test_bpe_vocabulary_size_includes_bytes_and_end_of_text():
    tokenizer = trained("bpe", 300)
    assert tokenizer.get_vocab_size() == 300
    assert {*pre_tokenizers.ByteLevel.alphabet(), END_OF_TEXT} <= tokenizer.get_vocab().keys()
    assert trained("bpe", 257).get_vocab_size() == 257
    the = encode(tokenizer, " the")
    assert len(the) == 1, "the most frequent word of the corpus became one token"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ("trained", "loaded"))
def test_end_of_text_written_by_a_user_is_plain_text(kind, how, tmp_path):
    tokenizer = trained(kind)
    if how == "loaded":
        tokenizer = load_tokenizer(saved(tokenizer, tmp_path))
    ids = encode(tokenizer, f"a{END_OF_TEXT}b")
    assert tokenizer.token_to_id(END_OF_TEXT) not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT}b"
    assert tokenizer.decode([tokenizer.token_to_id(END_OF_TEXT)], skip_special_tokens=False) == END_OF_TEXT


@pytest.mark.filterwarnings("default")  # transformers' own
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_files_as_the_same_tokenizer(kind, tmp_path):
    tokenizer = trained(kind)
    theirs = AutoTokenizer.from_pretrained(saved(tokenizer, tmp_path))
    ours = load_tokenizer(tmp_path)
    for text in AWKWARD:
        ids = encode(tokenizer, text)
        assert ids == theirs(text)["input_ids"] == encode(ours, text)
        assert theirs.decode(ids) == ours.decode(ids) == tokenizer.decode(ids) == text
    assert theirs.bos_token_id == theirs.eos_token_id == tokenizer.token_to_id(END_OF_TEXT)
    assert len(theirs) == tokenizer.get_vocab_size()


def test_unknown_characters_are_named_in_order_of_appearance():
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["abc"])
    with pytest.raises(InputError, match=r"'Z', '\\u2603', '\\n'$"):
        encode(tokenizer, "aZb☃\nZ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_lone_surrogate_is_named(kind):
    """A prompt on the command line that is not UTF-8 reaches Python as surrogates."""
    with pytest.raises(InputError, match=r"'\\udc80'"):
        encode(trained(kind), "a\udc80")


@pytest.mark.parametrize("content", (None, "", "{", "{}", "[1]"))
def test_a_missing_or_broken_file_is_named(content, tmp_path):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match="tokenizer.json"):
        load_tokenizer(tmp_path)


def test_a_foreign_tokenizer_keeps_its_first_token_but_no_length_limit(tmp_path):
    foreign = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2}))
    foreign.pre_tokenizer = pre_tokenizers.Whitespace()
    foreign.add_special_tokens(["<s>"])
    foreign.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    foreign.enable_truncation(2)
    foreign.enable_padding(length=9)
    foreign.save(str(tmp_path / "tokenizer.json"))
    assert encode(load_tokenizer(tmp_path), "a b a b") == [0, 1, 2, 1, 2]


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"a": 0, END_OF_TEXT: 1, "<s>": 2, "<unk>": 3}, unk_token="<unk>"),
        models.Unigram([("a", -1.0), (END_OF_TEXT, -1.0), ("<s>", -1.0), ("<unk>", -1.0)], unk_id=3),
    ],
    ids=["WordLevel", "Unigram"],
)
def test_the_ids_of_texts_are_those_that_encoding_gives(model):
    """That of the unknown too, though it is special; the model's embeddings go as far as they do."""
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens([END_OF_TEXT, "<s>", "<unk>"])
    assert encode(tokenizer, "Z") == [3]
    assert text_ids(tokenizer, 1) == {0, 1, 3}
    assert text_ids(trained("byte"), 256) == {*range(257)}


def test_training_is_deterministic():
    """Not even another process, with other hashes, gets other merges."""
    code = (
        "import sys, json; from data.tokenizer import *;"
        "t = train_tokenizer(TokenizerConfig(vocab_size=400), json.loads(sys.argv[1])); print(ascii(t.to_str()))"
    )
    command = [sys.executable, "-c", code, json.dumps(CORPUS + AWKWARD)]
    outputs = [
        subprocess.run(command, env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}, capture_output=True)
        for seed in ("1", "2")
    ]
    assert outputs[0].stdout.decode().strip() == outputs[1].stdout.decode().strip() == ascii(trained("bpe").to_str())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", (1, 2, 3, 7, 40))
def test_chunks_give_the_tokens_of_whole_documents(kind, size, monkeypatch):
    """A cut inside a word, or before the wrong space of several, would change tokens."""
    monkeypatch.setattr(encoding, "_PIECE_CHARACTERS", size)
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 100)
    tokenizer = trained(kind)
    end = [tokenizer.token_to_id(END_OF_TEXT)]
    expected = sum((end + tokenizer.encode(text).ids for text in AWKWARD), [])
    chunks = list(token_chunks(tokenizer, TokenizerConfig(kind=kind), AWKWARD))
    assert numpy.concatenate([chunk.ids for chunk in chunks]).tolist() == expected
    assert len(chunks) > 1
    in_parts = [[text[i : i + 5] for i in range(0, len(text), 5)] for text in AWKWARD]
    assert tokens(tokenizer, kind, in_parts) == expected
    assert train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), in_parts + CORPUS).to_str() == (
        train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), AWKWARD + CORPUS).to_str()
    )


SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2007\u200a\u2028\u2029\u202f\u205f\u3000" + "\x00\x1c\x1f\u200b\ufeff"
FRAGMENTS = [
    *SPACES,
    *"'.-_1aZsé²北。😀",
    *"'ll 're don't e\u0301".split(),
    "\r\n",
    "  ",
    " the",
    "ab" * 40,
    END_OF_TEXT,
]


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_words_encoded_once_give_the_tokens_of_whole_documents(kind, full):
    """Any text from characters that separate words or may seem to, and in one batch with others."""
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), [*FRAGMENTS * 9, *map(chr, range(256))])
    end = tokenizer.token_to_id(END_OF_TEXT)
    fragments = strategies.sampled_from(FRAGMENTS) | strategies.characters(max_codepoint=255)
    texts = strategies.lists(fragments, min_size=1, max_size=30).map("".join)

    @settings(max_examples=3000 if full else 100, derandomize=True, database=None, deadline=None)
    @given(strategies.lists(texts, max_size=4))
    @example([])
    def check(documents):
        expected = [number for text in documents for number in (end, *encode(tokenizer, text))]
        assert tokens(tokenizer, kind, documents) == expected

    check()


def test_every_pair_of_characters_is_cut_only_where_words_end():
    """Each of ASCII with each, and each space beyond it, with what may come around them."""
    split = trained("bpe").pre_tokenizer.pre_tokenize_str
    characters = [*map(chr, range(128)), *SPACES, "é", "北"]
    for a, (left, right) in itertools.product(characters, [("", ""), (" ", "s"), ("'", " b"), ("\t", "1")]):
        text = "".join(left + a + b + right for b in characters)
        ends = itertools.accumulate(len(word) for word, _ in split(text))  # in bytes
        assert {*encoding._word_starts([text.encode()])} <= {0, *ends}, ascii(a)


def test_words_of_ascii_text_are_those_of_the_pre_tokenizer():
    """Larger ones would be repeated less often, and tokenizing be slower."""
    text = " The cat's 2nd hat, (of_three).\n    def f(x): return 'x1'+y\n"
    starts = encoding._word_starts([text.encode()])
    words = [text[a:b] for a, b in itertools.pairwise(starts)]
    assert words == [" The", " cat", "'s", " 2", "nd", " hat", ",", " (", "of", "_", "three", ").", "\n    def", " f",
                     "(", "x", "):", " return", " 'x", "1", "'+", "y", "\n"]  # fmt: skip


@pytest.mark.parametrize("space", (" ", "\n"))
def test_no_character_makes_a_cut_unsafe(space):
    """Python and the pre-tokenizer may disagree on what a space is; then \\S before a space is no boundary."""
    split = trained("bpe").pre_tokenizer.pre_tokenize_str
    for character in map(chr, [*range(0xD800), *range(0xF900, 0x10000, 7), *range(0x1F000, 0x1F100)]):
        left, right = f" a {character}", f"{space} b"
        if encoding._BPE_BOUNDARY.match(left + right, 3):
            whole = [word for word, _ in split(left + right)]
            assert whole == [word for part in (left, right) for word, _ in split(part)], ascii(character)


@pytest.mark.parametrize(("kind", "text"), [("byte", "é" * 100_000), ("char", "a" * 100_000), ("bpe", "x,y;" * 25_000)])
def test_a_long_line_without_spaces_comes_in_bounded_pieces(kind, text):
    tokenizer = trained(kind)
    found = list(pieces(TokenizerConfig(kind=kind), text))
    assert "".join(found) == text and max(map(len, found)) < 10_100
    assert tokenizer.decode(tokens(tokenizer, kind, [text * 4])[1:]) == text * 4


def test_words_of_chinese_japanese_and_korean_end_at_their_punctuation():
    """Such a text may have no space at all, and must not be encoded in one piece."""
    split = trained("bpe").pre_tokenizer.pre_tokenize_str
    letters = [*map(chr, [*range(0x4E00, 0xA000, 13), *range(0x3041, 0x3100), *range(0xAC00, 0xD7A4, 31)])]
    safe = [letter for letter in letters if encoding._BPE_BOUNDARY.match(letter + "。")]
    assert len(safe) > 0.95 * len(letters)
    for letter in safe:
        for mark in "、。，！？；：":
            apart = [word for part in (letter, mark) for word, _ in split(part)]
            assert [word for word, _ in split(letter + mark)] == apart, letter + mark
    found = list(pieces(TokenizerConfig(), "北京大学，你好。" * 20_000))
    assert max(map(len, found)) < 10_010


def test_a_word_without_an_end_is_encoded_in_bounded_pieces():
    """Of a hundred thousand characters: in one piece, 200 MB of them would take all memory."""
    tokenizer, text = trained("bpe"), "abcde" * 50_000
    for document in (text, [text[:99_999], text[99_999:]]):
        assert [*map(len, pieces(TokenizerConfig(), document))] == [100_000, 100_000, 50_000]
        expected = [encode(tokenizer, piece) for piece in (text[:100_000], text[100_000:200_000], text[200_000:])]
        assert tokens(tokenizer, "bpe", [document])[1:] == sum(expected, [])


def test_bpe_learns_from_the_first_part_of_a_large_corpus(monkeypatch):
    monkeypatch.setattr(module, "_BPE_TRAINING_CHARACTERS", 4000)

    def documents():
        yield from ["aaaa bbbb " * 200] * 2
        pytest.fail("read on")

    assert "aaaa" in train_tokenizer(TokenizerConfig(vocab_size=270), documents()).get_vocab()


def test_settings_file_is_what_hugging_face_expects():
    settings = json.loads(tokenizer_files(trained("bpe"))["tokenizer_config.json"])
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["bos_token"] == settings["eos_token"] == "<|endoftext|>"
    assert settings["clean_up_tokenization_spaces"] is False
