import random
import re

import numpy
import pytest

from base import InputError
from data import synthetic
from data.config import DataConfig
from data.corpus import load_corpus
from data.documents import END_OF_TEXT
from data.sources import open_source
from data.synthetic import LETTERS, TASKS, TRAINED_LENGTHS, examples, scored_lengths, task_of


@pytest.fixture(params=TASKS)
def task(request):
    return request.param


def by_reading(task, prompt):
    """The answer that a reader of a prompt gives, found in another way than it was made."""
    if task == "copy":
        return "".join(character for character in prompt if character != "=")
    if task == "reverse":
        return "".join(reversed(prompt[: prompt.index("=")]))
    if task == "k-back":
        letters, digit = re.fullmatch("([a-j]+)([1-8])", prompt).groups()
        return letters[len(letters) - int(digit)]
    if task == "induction":
        letters, asked = prompt.split("=")
        assert letters.count(asked) == 1
        return re.search(f"{asked}(.)", letters).group(1)
    if task == "recall":
        pairs, asked = prompt.split("=")
        values = dict(re.findall("([A-Z])([a-z])", pairs))
        assert len(values) == len(pairs) / 2, "a key came twice"
        return values[asked]
    if task == "indirect-indexing":
        letters, asked, sign, steps = re.fullmatch("([a-j]+)=([a-j])([+-])([0-4])", prompt).groups()
        assert letters.count(asked) == 1
        asked_behind = letters.split(asked)[sign == "+"]
        behind = asked + asked_behind if sign == "+" else (asked_behind + asked)[::-1]
        return behind[int(steps)]
    first, second = (sum(int(digit) * 10**n for n, digit in enumerate(part)) for part in prompt[:-1].split("+"))
    digits = len(prompt) // 2
    return "".join(str((first + second) // 10**n % 10) for n in range(digits))


def test_the_answer_is_what_the_prompt_asks_for(task):
    for length in range(1, 4 * TRAINED_LENGTHS[task] + 1):
        for prompt, answer in examples(task, length, 30, seed=0):
            assert answer == by_reading(task, prompt), prompt


def test_a_length_decides_how_long_prompt_and_answer_are(task):
    """Or an exact match at one length would mix easy and hard examples."""
    sizes = {
        "copy": lambda n: (n + 1, n),
        "reverse": lambda n: (n + 1, n),
        "k-back": lambda n: (n + 1, 1),
        "induction": lambda n: (n + 3, 1),
        "recall": lambda n: (2 * n + 2, 1),
        "addition": lambda n: (2 * n + 2, n + 1),
        "indirect-indexing": lambda n: (n + 4, 1),
    }
    for length in scored_lengths(task):
        found = {(len(prompt), len(answer)) for prompt, answer in examples(task, length, 50, seed=1)}
        assert found == {sizes[task](length)}


@pytest.mark.parametrize(
    ("task", "prompts", "answers"),
    [("k-back", 8, 10), ("induction", 10, 10), ("recall", 26, 10), ("addition", 10, 2), ("indirect-indexing", 5, 10)],
)
def test_everything_that_can_be_asked_is(task, prompts, answers):
    """A letter or distance that never comes could be answered without looking."""
    made = examples(task, 16, 2000, seed=2)
    assert len({prompt[-1 if task != "addition" else 0] for prompt, _ in made}) == prompts
    assert len({answer[-1] for _, answer in made}) == answers


@pytest.mark.parametrize(
    ("task", "step", "named"), [("induction", 1, -1), ("recall", 2, -1), ("indirect-indexing", 1, -3)]
)
def test_every_place_is_asked_for(task, step, named):
    made = examples(task, 16, 1000, seed=2)
    assert {prompt.index(prompt[named]) for prompt, _ in made} == set(range(0, 16 * step, step))


def test_indirect_indexing_goes_up_to_four_places_both_ways_and_not_out_of_the_string():
    shifts = [int(prompt[-2:]) for prompt, _ in examples("indirect-indexing", 32, 1000, seed=2)]
    assert {*shifts} == {*range(-4, 5)}
    assert examples("indirect-indexing", 1, 1, seed=0)[0][0][2:] in {f"{letter}+0" for letter in LETTERS}


def test_scored_lengths_go_from_half_the_trained_one_to_four_times_it(task):
    lengths, trained = scored_lengths(task), TRAINED_LENGTHS[task]
    assert lengths[0] == trained // 2 and trained in lengths and lengths[-1] == 4 * trained
    assert lengths == sorted(set(lengths))


def test_examples_are_the_same_for_a_seed_and_others_for_another(task):
    assert examples(task, 6, 20, seed=3) == examples(task, 6, 20, seed=3)
    assert not set(examples(task, 6, 20, seed=3)) & set(examples(task, 6, 20, seed=4))


def test_the_corpus_stays_what_it_was():
    """Results made with it are comparable only as long as its text is."""
    documents = synthetic.documents("copy", "train")
    assert [next(documents) for _ in range(3)] == ["ichh=ichh", "j=j", "h=h"]


def test_a_corpus_has_all_trained_lengths_and_no_other(task, monkeypatch):
    monkeypatch.setattr(synthetic, "DOCUMENTS", {"train": 2000, "validation": 500})
    streams = open_source(DataConfig(source=f"synthetic/{task}"))
    train, validation = (list(streams[split]()) for split in ("train", "validation"))
    assert (len(train), len(validation)) == (2000, 500)
    assert train == list(streams["train"]()), "a stream is read up to three times"
    sizes = {sum(map(len, TASKS[task](length, random.Random(0)))) for length in range(1, TRAINED_LENGTHS[task] + 1)}
    assert {len(document) for document in train} == {len(document) for document in validation} == sizes
    longest = [document for document in train if len(document) == max(sizes)]
    assert not set(longest) & set(validation), "validation would be of what was trained on"


def test_no_example_of_the_trained_length_is_in_the_corpus(task):
    corpus = {document for document in synthetic.documents(task, "train")}
    made = ["".join(example) for example in examples(task, TRAINED_LENGTHS[task], 100, seed=0)]
    assert len(corpus.intersection(made)) <= 1  # two numbers of four digits may come again


def test_its_tokens_are_single_characters_between_ends_of_text(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "DOCUMENTS", {"train": 200, "validation": 50})
    config = DataConfig(source="synthetic/reverse", tokenizer={"kind": "char"}, cache_dir=str(tmp_path))
    corpus = load_corpus(config)
    assert corpus.tokenizer.get_vocab().keys() == {*LETTERS, "=", END_OF_TEXT}
    assert (corpus.val == corpus.tokenizer.token_to_id(END_OF_TEXT)).sum() == 50
    documents = list(open_source(config)["validation"]())
    assert corpus.tokenizer.decode(corpus.val.tolist()) == "".join(documents)
    assert len(corpus.val) == sum(map(len, documents)) + 50 and isinstance(corpus.val, numpy.memmap)


def test_sources_and_tasks_are_one_to_one(task):
    assert task_of(f"synthetic/{task}") == task
    assert task_of(task) is None and task_of("python_docs") is None and task_of("synthetic/copies") is None


@pytest.mark.parametrize("source", ["synthetic/copies", "synthetic/", "synthetic/k_back"])
def test_an_unknown_task_is_named_with_those_known(source):
    with pytest.raises(InputError, match=f"{source}.*synthetic/copy, .*synthetic/k-back, .*synthetic/addition"):
        open_source(DataConfig(source=source))


def test_a_file_in_a_folder_of_that_name_is_still_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / "mine.txt").write_text("text of mine")
    assert list(open_source(DataConfig(source="synthetic/mine.txt"))["train"]()) == ["text of mine"]
