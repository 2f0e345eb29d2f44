import argparse
import csv
import fcntl
import glob
import gzip
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import datasets
import numpy
import pyarrow.parquet
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers

from base import InputError
from data import corpus as module
from data import documents as documents_module
from data import encoding, hashing, python_library, shards, sources
from data.config import DataConfig, TokenizerConfig
from data.corpus import load_corpus
from data.documents import END_OF_TEXT
from data.tokenizer import train_tokenizer
from settings import one_line
from tiny import files_of_at_most

TEXTS = [f"document {n}: " + "lorem ipsum, dolor sit " * (n % 5 + 1) for n in range(60)]


@pytest.fixture
def load(tmp_path):
    def load(source, kind="byte", **settings):
        tokenizer = {"kind": kind, "vocab_size": settings.pop("vocab_size", 300)}
        settings = {"cache_dir": str(tmp_path / "cache"), **settings}
        return load_corpus(DataConfig(source=str(source), tokenizer=tokenizer, **settings))

    return load


@pytest.fixture
def load_file(load, tmp_path):
    """Loads a file of this content, text or bytes."""

    def load_file(content, kind="byte", name="a.txt", **settings):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(tmp_path / name, kind, **settings)

    return load_file


@pytest.fixture
def many(tmp_path):
    """A file of 60 documents."""
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    return path


def documents(corpus, split):
    """The texts in a split's stream of tokens, cut at end-of-text."""
    end = corpus.tokenizer.token_to_id(END_OF_TEXT)
    tokens = getattr(corpus, split)
    assert tokens[0] == end, "an end-of-text token precedes each document"
    starts = [*numpy.flatnonzero(tokens == end), len(tokens)]
    return [corpus.tokenizer.decode(tokens[a + 1 : b].tolist()) for a, b in zip(starts, starts[1:])]


def in_order(corpus):
    return documents(corpus, "train") + documents(corpus, "val")


def fraction(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 16**16


def entries(tmp_path):
    return sorted((tmp_path / "cache").glob("*/corpus.json"))


def remains(tmp_path):
    """What the cache holds but for locks, which stay."""
    return sorted(path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock")


def test_importing_the_configs_loads_no_heavy_library():
    code = "import sys, data.config; print({'torch', 'datasets', 'numpy', 'tokenizers'} & set(sys.modules))"
    env = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout == "set()\n", run.stderr


# Splits and the stream of tokens


@pytest.mark.parametrize("kind", ("byte", "char", "bpe"))
def test_documents_go_whole_and_in_order_to_the_split_their_hash_says(kind, load, many):
    corpus = load(many, kind, val_fraction=0.25)
    assert documents(corpus, "val") == [text for text in TEXTS if fraction(text) < 0.25]
    assert documents(corpus, "train") == [text for text in TEXTS if fraction(text) >= 0.25]
    assert corpus.train_bytes == sum(len(text) for text in TEXTS if fraction(text) >= 0.25)
    assert corpus.train_bytes + corpus.val_bytes == sum(map(len, TEXTS))


def test_a_single_document_gives_its_end(load_file):
    corpus = load_file("0123456789é\r\n\r\nABCDEF", val_fraction=0.25)
    assert documents(corpus, "train") == ["0123456789é\r\n\r\nA"[:16]]
    assert documents(corpus, "val") == ["BCDEF"]
    assert corpus.train_bytes == 17 and corpus.val_bytes == 5


def test_the_halves_of_the_validation_text_are_parted_by_a_hash(load, many):
    """Bit 64 of the hash, so that no part of it decides twice."""
    whole, *halves = (load(many, val_fraction=0.5, val_part=part) for part in ("all", "tuning", "reporting"))
    for corpus, odd in zip(halves, (0, 1)):
        expected = [text for text in documents(whole, "val") if hashlib.sha256(text.encode()).digest()[8] % 2 == odd]
        assert documents(corpus, "val") == expected != []
        assert corpus.val_bytes == sum(map(len, expected))
        assert corpus.hash == whole.hash and corpus.train.tolist() == whole.train.tolist()


def test_the_halves_of_a_single_validation_text_are_cut_in_the_middle(load_file):
    for part, text in (("tuning", "AB"), ("reporting", "CDé")):
        assert documents(load_file("0123456789ABCDé", val_fraction=0.34, val_part=part), "val") == [text]
    with pytest.raises(InputError, match="val_part 'tuning': the validation text has no document in that half"):
        load_file("0123456789", val_fraction=0.1, val_part="tuning")


@pytest.mark.parametrize(
    ("names", "asked", "is_told"),
    [("a b c d e", 0.1, True), ("a b c d e", 0.49, False), ("train.1 train.2 val", 0.1, False)],
)
def test_a_validation_text_larger_than_asked_for_by_far_is_told(load, tmp_path, capsys, names, asked, is_told):
    """Again by a start that finds it prepared."""
    kept = (text for n in range(99) if fraction(text := f"text {n}") >= asked)
    picked = next(text for n in range(99) if fraction(text := 50 * f"{n} ") < asked)
    (source := tmp_path / "set").mkdir()
    for name in names.split():
        (source / f"{name}.txt").write_text(picked if name in ("e", "val") else next(kept))
    for _ in range(2):
        corpus = load(source, val_fraction=asked)
        sizes = f"{len(corpus.train)} tokens for training and {len(corpus.val)} for validation"
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
        assert documents(corpus, "val") == [picked] and len(corpus.val) > len(corpus.train)
        assert len(lines) == is_told and all(sizes in line and f"data.val_fraction {asked}" in line for line in lines)
        module._tell_once.cache_clear()


def test_few_documents_that_leave_a_split_empty_say_what_to_do(load, tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    with pytest.raises(
        InputError, match="documents for training and for validation, got 3 and 0 at .*0.0001; .*join.*validation"
    ):
        load(tmp_path, val_fraction=0.0001)
    assert remains(tmp_path) == [], "nothing half-written remains"


@pytest.fixture
def folder(tmp_path):
    """Makes tmp_path/set, with a file of each name in a text; what is in it is its name."""

    def folder(names, place="set"):
        for name in names.split():
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"text": name}) if ".json" in name else name
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".txt.gz") else text.encode())
        return tmp_path / place

    return folder


@pytest.fixture
def read(load, monkeypatch):
    """Sorted texts for training and validation; without files for the latter the text `v`, and nothing is shared out."""

    def either(streams, *_):
        return {"train": streams["train"], "val": streams.get("validation", lambda: ["v"])}

    def read(source):
        monkeypatch.setattr(module, "_split", either)
        corpus = load(source)
        return sorted(documents(corpus, "train")), sorted(documents(corpus, "val"))

    return read


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("train.txt other.txt", "valid.txt", "test.txt"),
        (
            "train-00000-of-00002.txt train-00001-of-00002.txt",
            "validation-00000-of-00001.txt",
            "test-00000-of-00001.txt",
        ),
        ("train-00000-of-00001-2d5a1467fff1081b.txt", "dev-00000-of-00001-a69c898b519ad72d.txt", "test-0-of-1-e.txt"),
        ("train-00000-of-00001.txt.gz", "valid.txt.gz", "test.txt.gz"),
        ("wiki.train.txt", "wiki.valid.txt wiki.valid.2.txt", "wiki.test.txt"),
        ("corpus_train.jsonl", "corpus_val.jsonl", "corpus_test.jsonl"),
        ("training.txt", "validation_set.txt", "testing.txt"),
        ("train_v2.txt", "eval_v2.txt", "test_v2.txt"),
        ("train1.txt train2.txt", "evaluation.txt", "test1.txt"),
        ("wikiTrain.txt", "ValidationData.txt", "TestSet.txt"),
        ("trainset.txt", "DEV.txt", "testset.txt"),
        ("train/a.txt train/b.txt", "validation/a.txt", "test/a.txt"),
        ("x/my-train/deep/er/a.txt", "x/my-val/deep/er/a.txt", "x/my-test/deep/er/a.txt"),
        ("train/a-test-of-faith.txt", "val/trains.txt val/the-little-train.txt", "test/training-of-dogs.txt"),
        ("test/train.txt", "test/valid.txt", "train/test.txt"),
        (
            "train.txt latest.txt contest.txt devotion.txt validate_me.txt attest/evaluated.txt",
            "eval.txt",
            "x-test.txt",
        ),
        ("train.txt all.txt", "", "test.txt test/more.txt"),
        ("all.txt", "validation.txt", "test.txt"),
    ],
)
def test_each_file_goes_where_its_name_says(train, validation, test, folder, read, capsys):
    """By a word of the file's name or else of a folder's; a name that is nothing else counts first."""
    source = folder(f"{train} {validation} {test}")
    assert read(source) == (sorted(train.split()), sorted(validation.split()) or ["v"])
    n, v, t = (len(names.split()) for names in (train, validation, test))
    told = f"{n} file{'s' * (n > 1)} for training{f', {v} for validation' * bool(v)}; left out: {t} for test"
    assert capsys.readouterr().err.splitlines()[-1] == f"data.source {str(source)!r}: {told}"


def test_without_a_train_file_a_split_s_word_in_a_title_decides_nothing(folder, read, capsys):
    novels = ["an-evaluation.txt", "emma.txt", "persuasion.txt", "the-trial-and-test-of-faith.txt"]
    assert read(folder(" ".join(novels))) == (novels, ["v"])
    assert ": 4 files for training (even an-evaluation.txt, since none is called train)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", ("validation.txt test.txt", "validation/a.txt validation/b.txt", "test-0-of-1-2d5a.txt")
)
def test_files_for_validation_and_test_alone_are_not_trained_on(names, folder, load):
    source = folder(names)
    with pytest.raises(InputError, match=f"set': expected .* to train on, got only {min(names.split())}.* file itself"):
        load(source)


@pytest.mark.parametrize(
    ("names", "source"),
    [
        ("test.txt", "test.txt"),
        ("test1.txt test2.txt", "test*.txt"),
        ("test/test-1.txt test/test-2.txt", "te*/test-*.txt"),
        ("test/1.txt test/2.txt", "test/*.txt"),
        ("test/1.txt test/2.txt", "test"),
    ],
)
def test_what_data_source_itself_calls_test_is_trained_on(names, source, folder, read, capsys):
    assert read(folder(names) / source) == (names.split(), ["v"])
    assert capsys.readouterr().err.count("\n") == 1, "only that it was tokenized"


def test_a_name_that_says_two_splits_is_refused(folder, read, load):
    with pytest.raises(InputError, match="set/test_train.txt: expected one split in the name, got test and train$"):
        load(folder("train.txt test_train.txt"))
    assert read(folder("train_test.txt validation.txt", "other")) == (["train_test.txt"], ["validation.txt"])


def test_what_a_folder_has_beside_texts_is_told(folder, read, capsys):
    source = folder(
        "a.txt b.jsonl c.md d.MD.gz e.tsv f.txt.zst LICENSE .hidden .git/x.txt dataset_infos.json g\x1b[2J.p\x07q"
    )
    (source / "data").mkdir()
    (source / "data" / "dataset_info.json").write_text("{}")
    assert read(source) == (["a.txt", "b.jsonl"], ["v"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        f"data.source {str(source)!r}: 2 files for training; left out: 2 .md, 1 LICENSE, 1 .tsv, 1 .zst, 1 .p\\x07q"
    )
    read(source)
    assert capsys.readouterr().err == "", "once a process"


def test_one_plain_file_and_plain_files_alone_need_no_line(folder, read, capsys):
    read(folder("a.txt b.txt c.txt"))
    read(folder("d.txt", "one") / "d.txt")
    assert all(line.startswith("tokenized ") for line in capsys.readouterr().err.splitlines())


def test_characters_that_only_the_validation_text_has_get_tokens(load_file):
    """Otherwise that text would have no loss."""
    assert documents(load_file("a" * 90 + "zzzzzzzzzz", "char"), "val") == ["zzzzzzzzzz"]


def test_bpe_does_not_learn_from_the_validation_text(load_file):
    vocabulary = load_file("ab cd " * 150 + "zzzz" * 25, "bpe").tokenizer.get_vocab()
    assert "zz" not in vocabulary and "ab" in vocabulary


def test_a_document_longer_than_a_piece_has_one_end_of_text(load_file):
    text = "some words and\nlines " * 3000
    corpus = load_file(text, "bpe")
    assert in_order(corpus) == [text[:56700], text[56700:]]
    assert corpus.train[1:].tolist() == corpus.tokenizer.encode(text[:56700]).ids


@pytest.mark.parametrize("kind", ("byte", "char", "bpe"))
def test_end_of_text_written_in_the_text_is_text(kind, load_file):
    text = f"a{END_OF_TEXT}b" * 20
    assert documents(load_file(text, kind), "train") == [text[: len(text) * 9 // 10]]


@pytest.mark.parametrize(("highest", "dtype"), [(299, numpy.uint16), (65_536, numpy.uint32)])
def test_token_files_are_as_wide_as_the_highest_id_needs(highest, dtype, load_file, monkeypatch):
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))
    monkeypatch.setattr(shards, "highest_id", lambda _: highest)
    corpus = load_file(text, "bpe")
    assert isinstance(corpus.train, numpy.memmap) and corpus.train.dtype == corpus.val.dtype == dtype
    assert documents(corpus, "val") == [text[18_000:]]


@pytest.fixture
def load_with(tmp_path):
    """Loads a text with a tokenizer of another's folder."""

    def load_with(tokenizer, text):
        (place := tmp_path / "theirs").mkdir(exist_ok=True)
        tokenizer.save(str(place / "tokenizer.json"))
        (place / "config.json").write_text("{}")
        (tmp_path / "a.txt").write_text(text)
        config = {"tokenizer": {"folder": str(place)}, "cache_dir": str(tmp_path / "cache")}
        return load_corpus(DataConfig(source=str(tmp_path / "a.txt"), **config))

    return load_with


def words(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def test_ids_with_gaps_are_not_cut(load_with, monkeypatch):
    """Where an earlier version had done so, they are made again."""
    tokenizer = words(models.WordLevel({"lorem": 5, "ipsum": 70_000, END_OF_TEXT: 70_001}))
    with monkeypatch.context() as patch:
        for each in (module, shards):
            patch.setattr(each, "token_type", lambda _: numpy.dtype("<u2"), raising=False)
        load_with(tokenizer, "lorem ipsum " * 10)
    assert load_with(tokenizer, "lorem ipsum " * 10).train.tolist() == [70_001, *[5, 70_000] * 9]


@pytest.mark.parametrize(
    ("tokenizer", "unknown"),
    [
        (train_tokenizer(TokenizerConfig(kind="char"), ["lorem "]), r"'Z', '\\u2603'"),
        (words(models.WordLevel({"lorem": 0}, unk_token="[UNK]")), r"'loZ', '\\u2603', 'Zlo'"),
        (words(models.WordPiece({"lorem": 0}, unk_token="[UNK]")), r"'loZ', '\\u2603', 'Zlo'"),
        (words(models.Unigram([(letter, -1.0) for letter in "lorem"])), r"'loZ', '\\u2603', 'Zlo'"),
    ],
    ids=["char", "WordLevel", "WordPiece", "Unigram"],
)
def test_what_another_s_tokenizer_has_no_token_for_is_named(tokenizer, unknown, load_with):
    with pytest.raises(
        InputError, match=f"^data.tokenizer.folder '.*theirs': the tokenizer has no token for {unknown}$"
    ):
        load_with(tokenizer, "lorem loZ \u2603 Zlo " + "lorem " * 7)


# The cache


def test_the_second_time_nothing_is_tokenized(load, many, tmp_path, monkeypatch, capsys):
    first = load(many, "bpe")
    assert re.search(r"many.jsonl: .* tokens, in [\d.]+ s\n$", capsys.readouterr().err)
    monkeypatch.setattr(module, "train_tokenizer", None)
    second = load(many, "bpe")
    assert second.hash == first.hash and second.train.tolist() == first.train.tolist()
    assert (second.train_bytes, second.val_bytes, second.source) == (first.train_bytes, first.val_bytes, str(many))
    assert second.tokenizer.encode(END_OF_TEXT).ids == first.tokenizer.encode(END_OF_TEXT).ids != [0]
    assert capsys.readouterr().err == ""
    assert [name for name in remains(tmp_path) if name.startswith(".")] == []


def test_a_changed_text_of_the_same_length_and_time_is_tokenized_again(load, tmp_path, settled):
    path = tmp_path / "a.txt"
    path.write_text("old text, " * 10)
    before = path.stat()
    old = load(path)
    path.write_text("new text, " * 10)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    new = load(path)
    assert documents(new, "train") == ["new text, " * 9] and new.hash != old.hash


def test_each_setting_has_its_own_entry_and_the_hash_is_of_the_text(load, many, tmp_path):
    hashes = {
        load(many, **settings).hash
        for settings in ({}, {"kind": "bpe"}, {"kind": "bpe", "vocab_size": 280}, {"val_fraction": 0.3})
    }
    assert len(entries(tmp_path)) == 4 and len(hashes) == 1


def test_where_documents_end_and_which_are_validation_is_part_of_the_hash(load, tmp_path):
    a = next(text for text in TEXTS if fraction(text) >= 0.5)
    b = next(text for text in TEXTS if fraction(text) < 0.5)
    hashes = set()
    for n, files in enumerate([{"a": a, "b": b}, {"a": a + b}, {"train": a, "val": b}]):
        folder = tmp_path / str(n)
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.txt").write_text(text)
        hashes.add(load(folder, val_fraction=0.5).hash)
    assert len(hashes) == 3


def test_a_validation_split_without_text_takes_no_entry_of_a_source_without_one(load, many):
    (source := many.parent / "set").mkdir()
    many.rename(source / "train.jsonl")
    (source / "valid.jsonl").write_text('{"text": ""}')
    load(source / "train.jsonl")
    with pytest.raises(InputError, match="expected documents for training and for validation, got 60 and 0 "):
        load(source)


@pytest.mark.parametrize("name", ("train.npy", "val.npy", "tokenizer.json", "corpus.json"))
@pytest.mark.parametrize("damage", ("truncate", "empty", "remove", "header"))
def test_a_damaged_entry_is_made_again(name, damage, load, many, tmp_path):
    good = load(many).train.tolist()
    path = entries(tmp_path)[0].parent / name
    content = path.read_bytes()
    path.unlink()
    if damage != "remove":
        path.write_bytes({"truncate": content[:-20], "empty": b"", "header": b"#" * 20 + content[20:]}[damage])
    assert load(many).train.tolist() == good
    assert path.read_bytes() == content or name == "corpus.json"


@pytest.mark.parametrize("damage", [{"train": []}, {"train": {"sources": []}}], ids=str)
def test_an_entry_of_another_shape_is_made_again(damage, load, many, tmp_path):
    good, manifest = load(many).train.tolist(), entries(tmp_path)[0]
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | damage))
    assert load(many).train.tolist() == good and json.loads(manifest.read_text()) == content


def test_an_entry_that_cannot_be_read_is_not_made_again(load, many, tmp_path, monkeypatch):
    """Others may be reading it; and what is refused now may not be later."""
    good = load(many).train.tolist()
    manifest, real = entries(tmp_path)[0].parent / "corpus.json", Path.read_text

    def refuse(path, *arguments, **named):
        if path == manifest:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(module, "write_streams", None)
    with pytest.raises(InputError, match=f"^{manifest}: cannot be read: Permission denied$"):
        load(many)
    monkeypatch.undo()
    assert load(many).train.tolist() == good


def test_a_damaged_entry_that_cannot_be_removed_is_named(load, many, tmp_path, monkeypatch):
    load(many)
    (manifest := entries(tmp_path)[0].parent / "corpus.json").write_text("{")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(InputError, match=f"^data.cache_dir: {manifest.parent} is damaged and cannot be replaced"):
        load(many)


def test_a_process_waits_for_another_that_prepares_the_same(load, many, tmp_path, monkeypatch):
    """And uses what that one made. Here the other has its turn while this one asks for the lock."""
    lock = fcntl.flock

    def second(*arguments):
        monkeypatch.undo()
        second.first = load(many)
        monkeypatch.setattr(module, "write_streams", None)
        lock(*arguments)

    monkeypatch.setattr("fcntl.flock", second)
    assert load(many).train.filename == second.first.train.filename
    assert len(entries(tmp_path)) == 1 and not list((tmp_path / "cache").glob(".unfinished*"))


def test_no_two_processes_share_a_workplace_after_a_third_failed(load, many, monkeypatch):
    """The first fails while the second waits; the third comes while that one writes."""
    lock, write = fcntl.flock, module._write_entry

    def fail(*_):
        raise OSError(28, "No space left on device")

    def second(file, how):
        assert Path(file.name).is_file(), "NFS locks no folder for other computers"
        with monkeypatch.context() as patch, pytest.raises(InputError, match="No space left"):
            patch.setattr("fcntl.flock", lock)
            patch.setattr(module, "_write_entry", fail)
            load(many)
        lock(file, how)

    def third(file, how):
        with pytest.raises(BlockingIOError):
            lock(file, how | fcntl.LOCK_NB)
        raise Killed

    def meanwhile(*arguments):
        monkeypatch.setattr("fcntl.flock", third)
        with pytest.raises(Killed):
            load(many)
        write(*arguments)

    monkeypatch.setattr("fcntl.flock", second)
    monkeypatch.setattr(module, "_write_entry", meanwhile)
    load(many)


def test_without_locks_the_process_that_was_first_wins(load, many, tmp_path, monkeypatch):
    """Two processes start together: the later rename finds the folder taken, and its result is used."""
    write = module._write_entry

    def slower(*arguments):
        monkeypatch.setattr(module, "_write_entry", write)
        slower.first = load(many)
        write(*arguments)

    def no_locks(*_):
        raise OSError

    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setattr(module, "_write_entry", slower)
    assert load(many).train.filename == slower.first.train.filename
    assert len(list((tmp_path / "cache").glob("*/train.npy"))) == 1
    assert not list((tmp_path / "cache").glob(".unfinished*"))


class Killed(BaseException):
    """As if the process ended here."""


@pytest.fixture
def killed_after(monkeypatch):
    """killed_after(n): the preparation within it ends after n writings of tokenizer.json and the manifest."""

    @contextmanager
    def killed_after(count):
        real, left = shards.replace_text, [count]

        def write(*arguments):
            if not left[0]:
                raise Killed
            left[0] -= 1
            real(*arguments)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(shards, "replace_text", write)
            yield

    return killed_after


@pytest.mark.parametrize("kind", ("byte", "bpe"))
def test_a_killed_preparation_goes_on_where_it_stopped(kind, many, tmp_path, monkeypatch, killed_after):
    """With the same bytes at the end, and what its finished shards hold is not tokenized again."""
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 300)
    monkeypatch.setattr(shards, "_SHARD", 2)
    encoded, encoder = [], encoding._encoder

    def counting(*arguments):
        encode = encoder(*arguments)
        return lambda batch: encoded.append(batch) or encode(batch)

    monkeypatch.setattr(encoding, "_encoder", counting)
    both = [{"source": str(many)}, {"source": str(many), "name": "again"}]

    def prepare(name):
        corpus = load_corpus(DataConfig(sources=both, tokenizer={"kind": kind}, cache_dir=str(tmp_path / name)))
        return {path.name: path.read_bytes() for path in Path(corpus.train.filename).parent.iterdir()}

    whole, once = prepare("whole"), len(encoded)
    for kills in ([0, 1], [3, 2, 4], [8, 1]):
        encoded.clear()
        for count in kills:
            with killed_after(count):
                prepare(str(kills))
        assert prepare(str(kills)) == whole
        assert once <= len(encoded) <= once + 2 * len(kills), "at most a shard for each kill"
        assert not list((tmp_path / str(kills)).glob(".unfinished*"))


@pytest.mark.parametrize("failure", [sources.HubError, OSError, InputError])
def test_what_a_stream_gave_before_its_network_or_the_disk_failed_is_kept(failure, tmp_path, monkeypatch):
    """As after a kill; any other error leaves nothing."""
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 8)
    monkeypatch.setattr(shards, "_SHARD", 1)
    texts, is_up = [f"document {n}" for n in range(50)], False

    def read():
        yield from texts[:20]
        if not is_up:
            raise failure("no network")
        yield from texts[20:]

    streams = sources.Streams(train=read, validation=lambda: iter(texts[:2]))
    streams.identity = ("some/set",)  # so that it is not read for its hash
    monkeypatch.setattr(module, "open_source", lambda _: streams)
    given = {"source": "some/set", "streaming": True, "max_tokens": 10_000}
    config = DataConfig(**given, tokenizer={"kind": "byte"}, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(InputError, match="no network"):
        load_corpus(config)
    assert len([*(tmp_path / "cache").glob(".unfinished-*/train.npy")]) == (failure is not InputError)
    is_up = True
    assert documents(load_corpus(config), "train") == texts
    assert not [*(tmp_path / "cache").glob(".unfinished-*")]


@pytest.mark.parametrize("splits", [["train"], ["train", "validation"]], ids=str)
def test_a_stream_without_text_to_validate_on_is_refused_before_it_is_tokenized(
    splits, load, hub, tmp_path, monkeypatch
):
    rows = [{"text": ""}, {"text": "longer than four bytes"}] * 9
    hub(splits, lambda *_, **__: datasets.IterableDataset.from_generator(lambda: iter(rows)))
    monkeypatch.setattr(shards, "_write_stream", None)
    limit = {"val_fraction": 0.01, "max_tokens": 100}
    reason = "no text to validate on in the first 4 * data.val_fraction 0.01 * data.max_tokens 100 bytes"
    with pytest.raises(InputError, match=re.escape(f"data.source 'some/set': {reason}")):
        load("some/set", revision="a" * 40, streaming=True, **limit)
    assert remains(tmp_path) == []


def test_a_stream_killed_when_it_is_full_takes_no_later_document(tmp_path, monkeypatch, killed_after):
    """That would fit into the rest of max_tokens, where a shard ended with the text that did not."""
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 8)
    monkeypatch.setattr(shards, "_SHARD", 2)
    config, texts = TokenizerConfig(kind="byte"), ["x" * 10, "y" * 10, "zz"]

    def prepare(name):
        (folder := tmp_path / name).mkdir(exist_ok=True)
        about, streams = {"source": "some/set"}, {"train": [lambda: texts]}
        shards.write_streams(folder, about, config, lambda: train_tokenizer(config, texts), streams, most=[16])
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    whole = prepare("whole")
    assert json.loads(whole["corpus.json"])["train"]["sources"][0]["tokens"] == 11
    with killed_after(2):
        prepare("killed")
    assert prepare("killed") == whole


def test_an_unfinished_file_that_was_cut_is_made_again(load, many, tmp_path, monkeypatch, killed_after):
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 300)
    monkeypatch.setattr(shards, "_SHARD", 2)
    expected = load(many, cache_dir=str(tmp_path / "whole")).train.tolist()
    with killed_after(4):
        load(many)
    file = next((tmp_path / "cache").glob(".unfinished*/train.npy"))
    file.write_bytes(file.read_bytes()[:1000])
    assert load(many).train.tolist() == expected


def test_an_error_while_tokenizing_leaves_nothing(load, many, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(InputError, match="data.cache_dir .*/cache': cannot be written: No space left on device"):
        load(many)
    assert remains(tmp_path) == []


@pytest.mark.parametrize("kind", ("byte", "char"))
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda file: file.write_text('{"text": "\u00e9"}\n{"text": "b"}\n'),
            "changed while it was prepared; start again$",
        ),
        (Path.unlink, "cannot be read: No such file or directory$"),
    ],
    ids=["other", "gone"],
)
def test_a_text_that_changes_while_it_is_prepared_leaves_nothing(
    change, reason, kind, load, many, tmp_path, monkeypatch
):
    """Else the cache would hold it as what it was before. A char tokenizer may have no token for it."""
    real = shards.token_chunks

    def meanwhile(*arguments):
        if many.exists():
            change(many)
        return real(*arguments)

    monkeypatch.setattr(shards, "token_chunks", meanwhile)
    with pytest.raises(InputError, match=f"^{many}: {reason}"):
        load(many, kind)
    assert remains(tmp_path) == []


# The manifest of a source


@pytest.fixture
def settled(monkeypatch):
    """Files count as old at once."""
    monkeypatch.setattr(hashing, "_CLOCK", 0)


@pytest.fixture
def unread(monkeypatch):
    """Within it, no text is read."""

    def refuse(*_):
        raise AssertionError("read")

    @contextmanager
    def unread():
        with monkeypatch.context() as patch:
            for name in ("TextFile", "open_unpacked", "_parquet_column", "_dataset_texts"):
                patch.setattr(sources, name, refuse)
            patch.setattr(hashing, "_read", refuse)
            yield

    return unread


@pytest.mark.parametrize("name", ("a.txt", "a.jsonl", "a.parquet", "folder", "a*.txt", "rows"))
def test_an_unchanged_text_is_not_read_again(name, load, tmp_path, settled, unread, capsys):
    write_json(tmp_path / "a.jsonl", [{"text": text} for text in [*TEXTS, ""]])
    write_parquet(tmp_path / "a.parquet", [{"text": text} for text in TEXTS])
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "rows")
    for path in ("a.txt", "folder/train.txt", "folder/valid.txt", "folder/test.txt"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(f"some text of {path}")
    capsys.readouterr()
    first = load(tmp_path / name)
    tokenized, *told = capsys.readouterr().err.splitlines()
    module._tell_once.cache_clear()
    with unread():
        again = load(tmp_path / name)
    assert (again.hash, again.train.tolist()) == (first.hash, first.train.tolist())
    assert capsys.readouterr().err.splitlines() == told, "also what was left out"
    load(tmp_path / name, "bpe", vocab_size=257)
    assert len([*(tmp_path / "cache").glob("source-*.json")]) == 1


@pytest.mark.parametrize("change", ("time", "size", "another file", "gone", "option"))
def test_a_text_that_may_have_changed_is_read_again(change, load, tmp_path, settled, unread):
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.jsonl", [{"text": text, "n": text[:20]} for text in TEXTS])
    source, options = tmp_path / "*.jsonl", {"text_column": "n"} if change == "option" else {}
    first = load(source)
    with unread():
        load(source)
    if change == "time":
        os.utime(tmp_path / "a.jsonl", ns=(0, 0))
    elif change == "size":
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write('\n{"text": "one more"}\n')
    elif change == "another file":
        write_json(tmp_path / "c.jsonl", [{"text": "other"}])
    elif change == "gone":
        (tmp_path / "b.jsonl").unlink()
    with unread(), pytest.raises(AssertionError, match="read"):
        load(source, **options)
    assert (load(source, **options).hash == first.hash) == (change == "time")
    with unread():
        load(source, **options)


def test_a_text_that_has_just_been_written_is_not_trusted(load, load_file, tmp_path, unread):
    """A second change within the same tick of the clock would leave size and times as they are."""
    load_file("text " * 100)
    with unread(), pytest.raises(AssertionError, match="read"):
        load(tmp_path / "a.txt")


def test_a_damaged_manifest_is_made_again(load, many, tmp_path, settled):
    first = load(many)
    for damage in ("", "[]", "{}", '{"files": 1}'):
        file = next((tmp_path / "cache").glob("source-*.json"))
        whole = file.read_text()
        file.write_text(damage)
        assert load(many).hash == first.hash and file.read_text() == whole


def test_an_entry_of_the_version_before_shards_is_still_read(load, many, tmp_path, monkeypatch):
    first = load(many)
    file = entries(tmp_path)[0]
    facts = json.loads(file.read_text())
    for name in ("train", "val", "tuning", "reporting"):
        facts[name] = {key: facts[name]["sources"][0][key] for key in ("documents", "bytes", "tokens")}
    file.write_text(json.dumps(facts))
    monkeypatch.setattr(module, "write_streams", None)
    again = load(many)
    assert (again.hash, again.train_bytes, again.val.tolist()) == (first.hash, first.train_bytes, first.val.tolist())


# Mixtures


@pytest.fixture
def mix(tmp_path):
    """Loads a mixture of two texts, of which the second is called other; takes what else its config says."""
    for name, letters in {"first": "abc def ", "second": "uvw xyz "}.items():
        (tmp_path / f"{name}.txt").write_text(letters * 100)

    def mix(*weights, kind="byte", **options):
        texts = [{"source": str(tmp_path / "first.txt")}, {"source": str(tmp_path / "second.txt"), "name": "other"}]
        texts = [text | {"weight": weight} for text, weight in zip(texts, weights)]
        settings = {"cache_dir": str(tmp_path / "cache"), "tokenizer": {"kind": kind, "vocab_size": 300}}
        return load_corpus(DataConfig(sources=texts, **settings, **options))

    return mix


@pytest.mark.parametrize("part", ("all", "tuning", "reporting"))
def test_a_mixture_has_its_sources_side_by_side(part, mix, load, tmp_path):
    corpus = mix(1, 3, val_part=part)
    assert [(part.name, part.weight) for part in corpus.parts] == [("first", 1), ("other", 3)]
    alone = [load(tmp_path / f"{name}.txt", val_part=part) for name in ("first", "second")]
    for split in ("train", "val"):
        each = [getattr(one, split).tolist() for one in alone]
        assert [getattr(part, split).tolist() for part in corpus.parts] == each
        assert getattr(corpus, split).tolist() == sum(each, [])
    assert [part.val_bytes for part in corpus.parts] == [one.val_bytes for one in alone]
    for size in ("train_bytes", "val_bytes"):
        assert getattr(corpus, size) == sum(getattr(one, size) for one in alone)
    assert corpus.source == " + ".join(one.source for one in alone)


def test_other_weights_are_the_same_text_and_tokens(mix):
    """So that what is trained on them can be compared, token by token."""
    one, other = mix(1, 3, kind="bpe"), mix(1, 1, kind="bpe")
    assert one.hash == other.hash and one.train.filename == other.train.filename


def test_one_source_is_the_same_corpus_in_either_way(load, many, tmp_path):
    alone, settings = (
        load(many),
        {"cache_dir": str(tmp_path / "cache"), "tokenizer": {"kind": "byte", "vocab_size": 300}},
    )
    mixed = load_corpus(DataConfig(sources=[{"source": str(many), "weight": 0.3}], **settings))
    assert (mixed.train.filename, mixed.hash, mixed.source) == (alone.train.filename, alone.hash, alone.source)


def test_the_tokenizer_learns_equally_much_of_each_source(mix, tmp_path, monkeypatch):
    (tmp_path / "first.txt").write_text("abc def " * 40 + "ghi jkl " * 60)
    monkeypatch.setattr("data.tokenizer._BPE_TRAINING_CHARACTERS", 400)
    monkeypatch.setattr(encoding, "_PIECE_CHARACTERS", 50)
    vocabulary = mix(1, 1000, kind="bpe").tokenizer.get_vocab()
    assert {"abc", "uvw"} <= vocabulary.keys() and not any("ghi" in token for token in vocabulary)
    assert {*"abcdefghijkluvwxyz "} == mix(1, 1, kind="char").tokenizer.get_vocab().keys() - {END_OF_TEXT}


def test_the_sources_of_a_mixture_have_options_of_their_own(tmp_path):
    write_json(tmp_path / "a.jsonl", [{"body": "from a"}, {"body": ""}])
    (tmp_path / "b.txt").write_bytes(b"caf\xe9 " * 9)
    (tmp_path / "c.txt").write_text("c")
    a, b, c = ({"source": str(tmp_path / name)} for name in ("a.jsonl", "b.txt", "c.txt"))
    a_body, b_replaced = a | {"text_column": "body"}, b | {"errors": "replace"}

    def load(*texts, **settings):
        settings = {"cache_dir": str(tmp_path / "cache"), "tokenizer": {"kind": "byte"}, "val_fraction": 0.5} | settings
        return load_corpus(DataConfig(sources=texts, **settings))

    text = "caf\ufffd " * 9
    assert in_order(load(a_body, b_replaced)) == ["fro", text[:23], "m a", text[23:]]
    with pytest.raises(InputError, match="data.text_column 'text': .*a.jsonl, got body$"):
        load(a, b_replaced)
    with pytest.raises(InputError, match="b.txt: not UTF-8 at byte 3"):
        load(a_body, b)
    with pytest.raises(InputError, match="c.txt': expected documents for training and for validation, got 1 and 0 "):
        load(a_body, b_replaced, c, val_fraction=0.2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": None}, "expected either source or sources"),
        ({"source": "x", "sources": [{"source": "a"}]}, "expected either source or sources"),
        (
            {"sources": [{"source": "a.txt"}, {"source": "b/a.txt.gz"}]},
            "sources: two are called 'a'; give each its own",
        ),
        ({"sources": [{"source": "a/*.txt"}]}, "sources.0.name: '*': String should match pattern "),
        ({"sources": [{"source": "a"}, {"source": "b", "weight": 0}]}, "sources.1.weight: 0: should be greater than 0"),
        ({"sources": [{"source": "a", "weight": 1e-4}, {"source": "b"}]}, "sources: a weight is too small to be drawn"),
        ({"sources": [{"weight": 1}]}, "sources.0.source: Field required"),
        ({"sources": [{"source": "a", "weigth": 1}]}, "sources.0: unknown key 'weigth', did you mean 'weight'?"),
        (
            {"sources": [{"source": "a"}], "text_column": "b"},
            "text_column is set; in a mixture each of sources has its",
        ),
        ({"sources": "a.txt"}, "sources: 'a.txt': should be a valid tuple"),
    ],
)
def test_a_mixture_that_cannot_be_drawn_is_refused(values, message):
    with pytest.raises(ValidationError) as caught:
        DataConfig(**values)
    assert one_line(caught.value).startswith(message)


def test_a_mixture_s_config_comes_back_from_its_dump_with_the_names_filled_in():
    texts = [{"source": "org/Set-1"}, {"source": "a/b.jsonl.gz", "weight": 2}, {"source": "python_docs"}]
    config = DataConfig(sources=texts)
    assert [source.name for source in config.sources] == ["Set-1", "b", "python_docs"]
    assert DataConfig(**config.model_dump(mode="json")) == config


@pytest.mark.parametrize("source", ("many.jsonl", "one.txt", "python_docs"))
def test_a_cache_folder_that_cannot_be_written_is_named(source, load, many, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "one.txt").write_text("text " * 100)
    source = source if source == "python_docs" else tmp_path / source
    with pytest.raises(InputError, match=r"data.cache_dir .*/file/cache.: cannot"):
        load(source, cache_dir=str(tmp_path / "file" / "cache"))


# Local files


def write_parquet(path, rows):
    datasets.Dataset.from_list(rows).to_parquet(str(path))


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_json(path, rows):
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows)))


WRITERS = {".parquet": write_parquet, ".csv": write_csv, ".json": write_json, ".jsonl": write_json}
CUT_AT_COMMA = "expected 2 cells, as in the header, got 3; text with a comma or line break needs quotes$"
ROWS = [{"n": 1, "story": 'two\nlines, "quoted"'}, {"n": 2, "story": ""}, {"n": 3, "story": None},
        {"n": 4, "story": "NA"}, {"n": 5, "story": " é 😀\r\n"}]  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_row_of_a_table_is_a_document(suffix, load, tmp_path):
    """Empty rows are none; the text NA is text; a file name may look like a pattern."""
    path = tmp_path / f"a [1]{suffix}"
    WRITERS[suffix](path, ROWS)
    corpus = load(path, text_column="story", val_fraction=0.5)
    assert {*in_order(corpus)} == {'two\nlines, "quoted"', "NA", " é 😀\r\n"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b""),
        ("a.jsonl", b"\n"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)),
        ("a.json", b"[]"),
        ("a.csv", b"\xef\xbb\xbf"),
        ("a.csv", b"\n"),
        ("a.csv", b"text\n"),
        ("a.parquet", b""),
    ],
)
def test_a_table_without_rows_among_others_adds_nothing(name, content, folder, read):
    """However its format writes that; alone it is no text."""
    source = folder("b.txt")
    (source / name).write_bytes(content)
    assert read(source) == (["b.txt"], ["v"])
    with pytest.raises(InputError, match="no text in it$"):
        read(source / name)


def test_a_table_that_vanishes_while_the_text_is_read_is_named(folder, read, monkeypatch):
    source, real = folder("a.txt b.jsonl"), sources.TextFile

    def meanwhile(*arguments):
        (source / "b.jsonl").unlink()
        return real(*arguments)

    monkeypatch.setattr(sources, "TextFile", meanwhile)
    with pytest.raises(InputError, match="b.jsonl: No such file or directory$"):
        read(source)


@pytest.mark.parametrize("suffix", WRITERS)
def test_an_unknown_column_names_those_there_are(suffix, load, tmp_path):
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, ROWS)
    with pytest.raises(InputError, match="data.text_column 'text': .* got n, story$"):
        load(path)
    if suffix != ".csv":
        with pytest.raises(InputError, match="data.text_column 'n': expected text in row 1 of .*, got 1$"):
            load(path, text_column="n")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b'[{"text": "x"},', "a.json: "),
        ("a.json", b'[{"text": "x"}, "y"]', "a.json, row 2: expected a JSON object, got 'y'"),
        ("a.jsonl", b'{"text": "x"}\n\n{"text"\n', "a.jsonl, line 3: "),
        ("a.jsonl", b'{"text": "x"}\n{"text": "\xe9 "}\n', "a.jsonl, line 2: .*0xe9"),
        ("a.jsonl", b"5\n", "a.jsonl, row 1: expected a JSON object, got 5"),
        ("a.jsonl", b'{"text": "cut emoji \\ud83d"}', "a.jsonl.: unpaired surrogate at the end of 'cut emoji .ud83d'"),
        ("a.csv", b"text\n\xe9\n", "a.csv: not UTF-8 at byte 5: .*data.errors=replace"),
        ("a.csv", b'text\nx\n"never closed\ny\n', "a.csv, line 3: unexpected end of data"),
        ("a.csv", b'n,text\n1,"two\nlines"\n\n2\n3,x\n', "a.csv, line 5: expected 2 cells, as in the header, got 1"),
        ("a.csv", b"text,n\nI came, I saw,0\n", f"a.csv, line 2: {CUT_AT_COMMA}"),
        ("a.csv", b'n,text\r1,x\r2,"y\rz"\r3,x,\r', f"a.csv, line 5: {CUT_AT_COMMA}"),
        ("a.csv", b'n,text\n1,"Hi" he said\n', "a.csv, line 2: ',' expected after '\"'; .* quote within it is written"),
        ("a.csv", b'n,text\n1,x\n2,"a \\"quoted\\" word"\n', "a.csv, line 3: ',' expected after '\"'; "),
        ("a.csv", b"n;text\n1;x\n", "data.text_column 'text': .*a.csv, got n;text$"),
        ("a.csv", b"text,text\nx,y\n", "data.text_column 'text': .*one such column in .*a.csv, got text, text$"),
        ("a.parquet", b"PAR1 cut off", "a.parquet: "),
    ],
)
def test_a_broken_table_is_named_and_reported_once(name, content, reason, load_file, capfd):
    with pytest.raises(InputError, match=reason):
        load_file(content, name=name)
    assert capfd.readouterr().err == ""


def test_json_lines_may_be_called_json_and_rows_may_differ(load_file):
    a, b = (next(text for text in TEXTS if (fraction(text) < 0.5) is low) for low in (False, True))
    rows = [{"id": 1}, {"text": a}, {"text": b, "id": "x"}]
    corpus = load_file("\ufeff" + "\r\n".join(map(json.dumps, rows)), name="a.json", val_fraction=0.5)
    assert documents(corpus, "train") == [a] and documents(corpus, "val") == [b]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (
            b'\xef\xbb\xbf\n\nn,text\n\n1,He said "hi" to me\n\n\n2,"two\n\nlines, ""quoted"""\n\n',
            {'He said "hi" to me', 'two\n\nlines, "quoted"'},
        ),
        (b"n,text\r1,first\r2,second\r", {"first", "second"}),
        (b"n,text,\r\n1,first,\r\n2,second,\r\n3,,", {"first", "second"}),
    ],
)
def test_a_csv_file_as_programs_write_it(content, texts, folder, read, tmp_path):
    """Blank lines, quotes inside a cell, any line end, a comma too many in every line."""
    (tmp_path / "a.csv").write_bytes(content)
    assert read(tmp_path / "a.csv") == (sorted(texts), ["v"])


def test_rows_without_text_are_counted(load, tmp_path, capsys):
    rows = [{"text": text} for text in TEXTS] + [{"text": None}, {"text": ""}] * 600
    for suffix, write in WRITERS.items():
        write(tmp_path / f"a{suffix}", rows)
    (tmp_path / "absent.jsonl").write_text('\n{"text": "some words"}\n\n\n{"n": 1}\n')
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "rows")
    capsys.readouterr()
    for name in [*(f"a{suffix}" for suffix in WRITERS), "rows"]:
        load(tmp_path / name)
        told = f"data.source {str(tmp_path / name)!r}: left out: 1,200 rows without text"
        assert capsys.readouterr().err.splitlines()[-1] == told
    load(tmp_path / "absent.jsonl")
    assert "left out: 1 row without text\n" in capsys.readouterr().err


def test_a_long_csv_cell_is_read(load_file):
    assert load_file("text\n" + "x" * 200_000 + "\n", name="a.csv").train_bytes == 180_000


def test_a_table_of_a_great_many_columns_names_some(load_file):
    header = "n," + ",".join(f'"column\n{n}"' for n in range(10_000))
    with pytest.raises(InputError, match="data.text_column 'text': .* got n, column 0, column 1, ") as caught:
        load_file(header + "\n", name="a.csv")
    assert len(str(caught.value)) < 800 and "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".txt", *WRITERS])
def test_local_files_need_no_network(suffix, load, tmp_path, monkeypatch):
    """datasets.load_dataset asks the hub even for a local file, and stalls where nothing answers."""
    monkeypatch.setattr("socket.getaddrinfo", None)
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path, [{"text": TEXTS[4]}]) if suffix in WRITERS else path.write_text(TEXTS[4])
    monkeypatch.setattr(datasets, "load_dataset", None)
    assert "".join(in_order(load(path))) == TEXTS[4]


def test_text_is_utf8_whatever_the_platform_says(tmp_path):
    (tmp_path / "a.txt").write_bytes("é".encode() * 100)
    code = (
        "from data.config import *; from data.corpus import *;"
        "config = DataConfig(source='a.txt', cache_dir='cache', tokenizer={'kind': 'char'});"
        "print(load_corpus(config).tokenizer.get_vocab_size())"
    )
    env = {"PYTHONPATH": ":".join(sys.path), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.stdout == "2\n", run.stderr


# Texts that come in parts, and awkward ones


@pytest.mark.parametrize("kind", ("byte", "char", "bpe"))
@pytest.mark.parametrize("size", (3, 4, 5, 64, 2**20))
def test_a_file_read_in_parts_is_the_same_corpus_as_one_read_whole(kind, size, load, tmp_path, monkeypatch):
    """Parts that end within a character, and a split between training and validation within a part."""
    text = "naïve 北京 😀👩‍👩‍👧 words\r\n" * 40
    (tmp_path / "one.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    whole = load(tmp_path / "one.txt", kind, cache_dir=str(tmp_path / "whole"))
    monkeypatch.setattr(documents_module, "_PART_BYTES", size)
    in_parts = load(tmp_path / "one.txt", kind)
    cut = len(text) - len(text) // 10
    assert in_order(in_parts) == [text[:cut], text[cut:]]
    assert all(getattr(in_parts, fact) == getattr(whole, fact) for fact in ("hash", "train_bytes", "val_bytes"))
    assert numpy.array_equal(in_parts.train, whole.train) and numpy.array_equal(in_parts.val, whole.val)


def test_several_files_read_in_parts_go_where_they_would_go_whole(load, tmp_path, monkeypatch):
    for n, text in enumerate(TEXTS[:20]):
        (tmp_path / f"{n:02}.txt").write_text(text)
    monkeypatch.setattr(documents_module, "_PART_BYTES", 7)
    assert documents(load(glob.escape(str(tmp_path)) + "/*.txt", val_fraction=0.3), "val") == [
        text for text in TEXTS[:20] if fraction(text) < 0.3
    ]


@pytest.mark.parametrize("size", (4, 2**20))
def test_the_byte_that_is_not_utf8_is_counted_over_all_parts(size, load_file, monkeypatch):
    monkeypatch.setattr(documents_module, "_PART_BYTES", size)
    places = {b"abcdefg\xe9hij": 7, "aé".encode() * 5 + b"\xe9": 15, b"ab\xc3": 2, b"abc\xe5\x8c": 3}
    for content, place in (places | {b"\xef\xbb\xbfn\xe9 text": 4}).items():
        with pytest.raises(InputError, match=f"a.txt: not UTF-8 at byte {place}: .*data.errors=replace"):
            load_file(content)


@pytest.mark.parametrize("name", ("a.txt", "a.txt.gz", "a.csv", "a.jsonl", "a.json"))
def test_bytes_that_are_not_utf8_are_replaced_when_asked(name, load_file):
    text = b"caf\xe9 " * 20
    tables = {"csv": b"text\n%s", "jsonl": b'{"text": "%s"}\n', "json": b'[{"text": "%s"}]'}
    content = tables.get(name.split(".")[-1], b"%s") % text
    content = gzip.compress(content) if name.endswith(".gz") else content
    with pytest.raises(InputError, match=name):
        load_file(content, name=name)
    assert in_order(load_file(content, name=name, errors="replace")) == ["caf\ufffd " * 18, "caf\ufffd " * 2]


@pytest.mark.parametrize("kind", ("string", "large_string", "string_view", "dictionary", "saved"))
def test_arrow_text_that_is_not_utf8_is_named_by_its_row_and_replaced_when_asked(kind, load, tmp_path):
    """The file itself is compressed: a place in it would tell nothing."""
    column = pyarrow.array([None] * 1500 + ["d\u00e9but".encode(), b"caf\xe9 " * 20], pyarrow.binary())
    of_bytes = {"large_string": "large_binary", "string_view": "binary_view"}
    column = column.cast(of_bytes[kind]).view(kind) if kind in of_bytes else column.view("string")
    table = pyarrow.table({"text": column.dictionary_encode() if kind == "dictionary" else column})
    source = tmp_path / ("rows" if kind == "saved" else "a.parquet")
    datasets.Dataset(table).save_to_disk(source) if kind == "saved" else pyarrow.parquet.write_table(table, source)
    with pytest.raises(InputError, match=f"{source.name}, row 1502: not UTF-8 at byte 3 of its text: .*errors=replace"):
        load(source)
    streams = sources.open_source(DataConfig(source=str(source), errors="replace"))
    assert [*streams["train"]()][1500:] == ["d\u00e9but", "caf\ufffd " * 20]


@pytest.mark.parametrize("suffix", (".txt", ".jsonl", ".csv", ".json"))
def test_compressed_files_are_read_like_others(suffix, load, tmp_path):
    plain, packed = tmp_path / f"plain{suffix}", tmp_path / f"packed{suffix}.GZ"
    WRITERS[suffix](plain, [{"text": TEXTS[4]}]) if suffix in WRITERS else plain.write_text(TEXTS[4])
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load(packed).hash == load(plain).hash


@pytest.mark.parametrize("damage", ("cut", "flipped", "none"))
@pytest.mark.parametrize("suffix", (".txt", ".jsonl"))
def test_a_compressed_file_that_is_broken_is_named(suffix, damage, load_file):
    content = bytearray(gzip.compress(json.dumps({"text": TEXTS[4] * 50}).encode()))
    content[len(content) // 2] ^= 255
    content = {"cut": gzip.compress(b'{"text": "abc"}')[:-9], "flipped": content, "none": b"plain text"}[damage]
    with pytest.raises(InputError, match=f"a{suffix}.gz: ."):
        load_file(bytes(content), name=f"a{suffix}.gz")


@pytest.mark.parametrize("kind", ("byte", "char", "bpe"))
def test_text_is_kept_as_it_is_but_for_the_byte_order_mark(kind, load_file):
    """NUL, Windows line ends, a mark in the middle, every plane, joined and composed characters, odd line ends."""
    text = "  \r\n\ta\x00b\r\nc\rd\ufeffe 北京，你好。👩‍👩‍👧 e\u0301 \u2028\u2029\x85\x0b\x1c \U0010ffff\ufffe " * 30
    assert "".join(in_order(load_file("\ufeff" + text, kind))) == text


@pytest.mark.parametrize("kind", ("byte", "bpe"))
def test_one_very_long_line(kind, load_file, full):
    """In parts of 16 MB; with --full it has 200 MB."""
    size = 200_000_000 if full else 17_000_000
    line = "one line of many words " * (size // 23)
    corpus = load_file(line, kind)
    assert corpus.train_bytes + corpus.val_bytes == len(line)
    assert corpus.tokenizer.decode(corpus.val[1:40].tolist()) in line


def test_a_great_many_tiny_documents(load, tmp_path, full):
    """A hundredth of a million; with --full, the million."""
    count = 1_000_000 if full else 10_000
    with (tmp_path / "many.jsonl").open("w") as file:
        file.writelines(f'{{"text": "document {n}"}}\n' for n in range(count))
    corpus = load(tmp_path / "many.jsonl")
    ends = [(part == 256).sum() for part in (corpus.train, corpus.val)]
    assert sum(ends) == count and 0.08 < ends[1] / count < 0.12


@pytest.mark.parametrize("kind", ("byte", "bpe"))
def test_memory_does_not_grow_with_the_corpus(kind, load, tmp_path, monkeypatch):
    """Python's share of it, on a small scale; benchmarks/prepare_memory.py measures all of it with 2 GB of text."""
    monkeypatch.setattr(documents_module, "_PART_BYTES", 2**16)
    monkeypatch.setattr(encoding, "_BATCH_BYTES", 2**14)
    peaks = []
    for size in (300_000, 1_500_000):
        (tmp_path / "a.txt").write_bytes("some words é\n".encode() * (size // 13))
        tracemalloc.start()
        load(tmp_path / "a.txt", kind)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000, peaks


def test_folders_and_globs_take_the_same_files_in_order(load, tmp_path, monkeypatch):
    folder = tmp_path / "set"
    for name in ("b.txt", "a/z.TXT", "a/b.jsonl", "c.md", "empty.txt", "empty.jsonl", ".hidden/x.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = {".md": "no", ".jsonl": json.dumps({"text": name})}.get(name[name.rindex(".") :], name)
        (folder / name).write_text("" if "empty" in name else content)
    (folder / "empty.txt.gz").write_bytes(gzip.compress(b""))
    monkeypatch.setattr(module, "_split", lambda streams, *_: {"train": streams["train"], "val": lambda: ["v"]})
    expected = ["a/b.jsonl", "a/z.TXT", "b.txt"]
    assert documents(load(folder), "train") == expected
    stem = glob.escape(str(folder))
    assert documents(load(f"{stem}/**/*"), "train") == documents(load(f"{stem}/**/**/*"), "train") == expected
    monkeypatch.setenv("HOME", str(tmp_path))
    assert documents(load("~/set"), "train") == documents(load("~/s*/*/*"), "train") + ["b.txt"] == expected


@pytest.mark.parametrize(
    "source",
    ("gone.txt", ".gone", "./gone", "/gone", "~/gone", "../gone", "a/b/c", "here/gone", "gone.jsonl", "a/gone.csv"),
)
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(source, load, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "_hub_dataset", None)
    with pytest.raises(InputError, match=f"^data.source '{source}': no such file or folder$"):
        load(source)


def test_a_folder_that_may_not_be_read_is_named_and_not_left_out(folder, load, monkeypatch):
    """Unless it is hidden. Refused as the system would: root may read all."""
    source, scandir = folder("a.txt in/closed/b.txt .git/x.txt"), os.scandir
    (source / "link").symlink_to(source / "in")

    def refuse(place):
        if Path(place).name in ("closed", ".git"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    for given in ("", "**/*.txt", "**", "*/*/*.txt", "in/*/*.txt", "link/**/b.txt", "in/closed/b*"):
        with pytest.raises(InputError, match="set/(in|link)/closed/?: cannot be read: Permission denied$"):
            load(source / given)
    for given in ("*", "*/closed/b.txt"):  # where no name is looked for inside it
        sources.open_source(DataConfig(source=str(source / given)))
    (source / "in" / "closed").rename(source / "in" / "open")
    files = sources.open_source(DataConfig(source=str(source))).files["train"]
    assert {path.name for path in files} == {"a.txt", "b.txt"}


def test_a_link_to_a_folder_is_followed_and_no_text_taken_twice(folder):
    """Folders as globs do, though not for ever where a link leads back; what it leads to counts by its own place."""
    source = folder("a.txt in/b.txt other/c.txt")
    outside = source.parent / "disk"
    (source / "other").rename(outside)
    (source / "in" / "outside").symlink_to(outside)
    (source / "in" / "back").symlink_to(source)
    (source / "again").symlink_to(source / "in")
    files = sources.open_source(DataConfig(source=str(source))).files["train"]
    assert [path.relative_to(source).as_posix() for path in files] == ["a.txt", "in/b.txt", "in/outside/c.txt"]


def test_sources_without_text_are_refused(load, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.md").write_text("text")
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf")
    for source, reason in {
        "empty": "expected files that end in .txt, .json, .jsonl, .csv, .parquet, got none",
        "*.nothing": "expected files that end in",
        "a.md": "expected a file that ends in .txt, .json, .jsonl, .csv, .parquet",
        "a.txt": "no text",
        "bom.txt": "no text",
    }.items():
        with pytest.raises(InputError, match=re.escape(source) + ".: " + reason):
            load(tmp_path / source)


# Hugging Face data sets


def test_saved_data_sets(load, tmp_path):
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    rows.save_to_disk(tmp_path / "rows")
    saved = {"train": rows, "validation": rows.select(range(30)), "test": rows.select([7])}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "dict")
    corpus = load(tmp_path / "rows")
    assert documents(corpus, "train") == [text for text in TEXTS if fraction(text) >= 0.1]
    corpus = load(tmp_path / "dict")
    assert documents(corpus, "train") == TEXTS and documents(corpus, "val") == TEXTS[:30]
    corpus = load(tmp_path / "dict", split="validation", val_fraction=0.3)
    assert documents(corpus, "val") == [text for text in TEXTS[:30] if fraction(text) < 0.3], "no split is both"
    with pytest.raises(InputError, match="data.split 'trian': expected one of train, validation, test$"):
        load(tmp_path / "dict", split="trian")
    with pytest.raises(InputError, match="data.text_column 'body': .* got text$"):
        load(tmp_path / "dict", text_column="body")


@pytest.mark.parametrize("name", ("validation", "valid", "val", "dev", "eval", "evaluation"))
def test_the_validation_split_of_a_data_set_may_have_any_of_its_names(name, load, tmp_path):
    rows = {"train": ["to train on"], name: ["to validate"], "test": ["for nobody's eyes"]}
    saved = datasets.DatasetDict({split: datasets.Dataset.from_dict({"text": texts}) for split, texts in rows.items()})
    saved.save_to_disk(tmp_path / "dict")
    corpus = load(tmp_path / "dict")
    assert in_order(corpus) == ["to train on", "to validate"]


def test_a_damaged_saved_data_set_is_named(load, tmp_path):
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path / "rows")
    next((tmp_path / "rows").glob("*.arrow")).write_bytes(b"junk")
    with pytest.raises(InputError, match="data.source .*/rows.: "):
        load(tmp_path / "rows")


@pytest.fixture
def hub(monkeypatch):
    """A hub whose data sets have these splits, loaded by a function."""

    def hub(splits, load_dataset):
        monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda self, name, timeout: None)
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *_, **__: splits)
        monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    return hub


def test_a_hub_data_set_is_asked_for_what_the_config_says(load, hub):
    calls = []

    def load_dataset(*arguments, **options):
        calls.append((arguments, options))
        return datasets.Dataset.from_dict({"body": [f"{options['split']} of {arguments}"]})

    hub(["train", "valid", "test", "extra"], load_dataset)
    corpus = load("some/set", subset="small", split="extra", text_column="body")
    assert documents(corpus, "train") == ["extra of ('some/set', 'small')"]
    assert documents(corpus, "val") == ["valid of ('some/set', 'small')"]
    assert sorted(options["split"] for _, options in calls) == ["extra", "valid"]
    assert all(options.keys() == {"split"} for _, options in calls), "no remote code"


@pytest.mark.parametrize(
    ("split", "own"), [("train", ["v"]), ("train+validation", []), ("validation[:50%]", []), ("all", [])]
)
def test_a_split_of_the_hub_that_is_trained_on_does_not_validate(split, own, hub):
    hub(["train", "validation"], lambda *_, split: datasets.Dataset.from_dict({"text": [split[0]]}))
    streams = sources.open_source(DataConfig(source="some/set", split=split))
    assert [*streams["train"]()] == [split[0]] and [*streams.get("validation", list)()] == own


def test_a_hub_that_cannot_be_reached_is_one_line_at_once(load, monkeypatch):
    def unreachable(self, name, timeout):
        assert timeout <= 10
        raise ConnectionError("Name or service\nnot known")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", None)
    with pytest.raises(InputError) as error:
        load("some-user/some-set")
    assert str(error.value).startswith("data.source 'some-user/some-set': no such file or folder, and as a Hugging")
    assert "ConnectionError: Name or service not known" in str(error.value) and "\n" not in str(error.value)


def test_a_name_that_the_hub_cannot_have(load):
    with pytest.raises(InputError, match="data.source 'no..such--name': "):
        load("no..such--name")


# The built-in sources


def test_the_standard_library_as_a_corpus(load, tmp_path, monkeypatch, full):
    """Four of its packages; with --full all of it."""
    from pydoc_data.topics import topics

    if not full:
        packages = ("asyncio", "email", "http", "json")
        some = [path for path in python_library._library_files() if path.parent.name in packages]
        monkeypatch.setattr(python_library, "_library_files", lambda: some)
    corpus = load("python_docs")
    texts = in_order(corpus)
    assert {topics[name] for name in topics} <= set(texts)
    assert any(text.startswith("Serialize ``obj`` to a JSON formatted ``str``.\n\nIf ``skipkeys``") for text in texts)
    assert len(texts) == len(set(texts)) and min(map(len, texts)) >= 60
    assert (1_500_000 if full else 500_000) < corpus.train_bytes + corpus.val_bytes < 4_000_000
    cached = next((tmp_path / "cache").glob("docstrings-*.json"))
    cached.write_bytes(cached.read_bytes()[:-9])
    assert load("python_docs").hash == corpus.hash, "docstrings that were not written to the end are made again"
    monkeypatch.setattr(python_library, "_docstrings", None)
    assert load("python_docs", "char").hash == corpus.hash


def test_docstrings_that_a_full_disk_cuts_short_leave_nothing(load, tmp_path, monkeypatch):
    monkeypatch.setattr(python_library, "_docstrings", lambda _: ["x" * 10_000])
    with files_of_at_most(5000), pytest.raises(InputError, match="data.cache_dir .*cannot be written: File too large$"):
        load("python_docs")
    assert remains(tmp_path) == []


def test_the_library_s_source_leaves_out_tests_and_other_encodings():
    texts = list(python_library.python_source())
    assert inspect.getsource(argparse) in texts
    paths = python_library._library_files()
    parts = {part for path in paths for part in path.relative_to(sysconfig.get_path("stdlib")).parts}
    assert paths == sorted(paths) and not parts & {"test", "site-packages"}
    assert 5_000_000 < sum(map(len, texts)) and all(texts)
