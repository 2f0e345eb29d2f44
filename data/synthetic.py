"""Made-up corpora where position decides: `synthetic/copy` and its like.

Each document is a prompt and its answer. Those of the corpus have lengths 1 … TRAINED_LENGTHS; `examples` makes some
of any length, to see what a model does past those it was trained on.
"""

import string
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

PREFIX = "synthetic/"
LETTERS, KEYS = string.ascii_lowercase[:10], string.ascii_uppercase  # a guess of one letter is right in ten
DOCUMENTS = {"train": 100_000, "validation": 2_000}  # a million characters to train on, made in half a second


def copy(length: int, random: Random) -> tuple[str, str]:
    """`cab=` → `cab`: a random string again. Letters repeat, so the one before does not tell the next."""
    letters = _letters(length, random)
    return f"{letters}=", letters


def reverse(length: int, random: Random) -> tuple[str, str]:
    """`cab=` → `bac`: a random string backwards, each letter at another distance."""
    letters = _letters(length, random)
    return f"{letters}=", letters[::-1]


def k_back(length: int, random: Random) -> tuple[str, str]:
    """`cabd3` → `a`: the letter k before the end, for k up to 8."""
    letters, k = _letters(length, random), random.randint(1, min(length, 8))
    return f"{letters}{k}", letters[-k]


def induction(length: int, random: Random) -> tuple[str, str]:
    """`cabdb=a` → `b`: what followed a letter that came once. Olsson et al. 2022 (induction heads)."""
    asked = random.choice(LETTERS)
    letters = random.choices(LETTERS.replace(asked, ""), k=length + 1)
    place = random.randrange(length)
    letters[place] = asked
    return f"{''.join(letters)}={asked}", letters[place + 1]


def recall(length: int, random: Random) -> tuple[str, str]:
    """`CxAyBz=A` → `y`: the value of one of `length` ≤ 26 distinct keys. Ba et al. 2016, section 4.1."""
    keys, values, asked = random.sample(KEYS, length), _letters(length, random), random.randrange(length)
    return f"{''.join(map(''.join, zip(keys, values)))}={keys[asked]}", values[asked]


def addition(length: int, random: Random) -> tuple[str, str]:
    """`42+39=` → `711`, that is 24 + 93 = 117: numbers of `length` digits, the sum of one more, the last digit first.

    In that order a digit depends on those before it alone; with the first digit first, small models learn it badly
    (Lee et al. 2023).
    """
    a, b = (random.randrange(10**length) for _ in range(2))
    a, b, total = (f"{n:0{digits}}"[::-1] for n, digits in ((a, length), (b, length), (a + b, length + 1)))
    return f"{a}+{b}=", total


TASKS: dict[str, Callable[[int, Random], tuple[str, str]]] = {
    "copy": copy,
    "reverse": reverse,
    "k-back": k_back,
    "induction": induction,
    "recall": recall,
    "addition": addition,
}
TRAINED_LENGTHS = {"copy": 8, "reverse": 8, "k-back": 8, "induction": 8, "recall": 6, "addition": 4}


def task_of(source: str) -> str | None:
    """The task that a data.source names; None where it is other text."""
    task = source.removeprefix(PREFIX)
    return task if source.startswith(PREFIX) and task in TASKS else None


def source_of(task: str) -> str:
    """The data.source of a task's corpus."""
    return PREFIX + task


def streams(task: str) -> dict[str, Callable[[], Iterator[str]]]:
    """The documents for "train" and "validation": the same ones whenever they are asked for."""
    return {split: partial(_documents, task, split) for split in DOCUMENTS}


def examples(task: str, length: int, count: int, seed: int) -> list[tuple[str, str]]:
    """Prompts and answers of one length, drawn apart from the corpus."""
    random = Random(f"{task} test {length} {seed}")
    return [TASKS[task](length, random) for _ in range(count)]


def scored_lengths(task: str) -> list[int]:
    """Lengths to score: half the longest trained, that one, and on to four times it."""
    return [round(multiple * TRAINED_LENGTHS[task]) for multiple in (0.5, 1, 1.25, 1.5, 2, 3, 4)]


def _documents(task, split):
    random = Random(f"{task} {split}")
    for _ in range(DOCUMENTS[split]):
        yield "".join(TASKS[task](random.randint(1, TRAINED_LENGTHS[task]), random))


def _letters(length, random):
    return "".join(random.choices(LETTERS, k=length))
