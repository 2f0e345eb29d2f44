"""The page of the study says what its results do."""

import runpy
from dataclasses import replace
from pathlib import Path

from made_up import results, run

DOCS = Path(__file__).parent.parent / "docs"
STUDY = runpy.run_path(str(DOCS / "study.py"))


def test_a_variant_of_which_every_run_diverged_has_a_row():
    lost = [replace(run(seed, 3.0), diverged="step 3") for seed in range(3)]
    found = results({"base": [run(seed, 3.0, exact_match=[(8, 1.0)]) for seed in range(3)], "gone": lost}, "base")
    for table in (STUDY["loss"], STUDY["task"]):
        header, *_, last = table(found).splitlines()
        assert last.startswith("| gone | n/a |") and " diverged |" in last and last.count("|") == header.count("|")


def test_every_table_and_picture_of_the_study_is_made_from_its_results():
    page = (DOCS / "study.md").read_text(encoding="utf-8")
    assert STUDY["written"](page) == page
    pictures = STUDY["pictures"](page)
    assert pictures and all(file.read_text(encoding="utf-8") == text for file, text in pictures.items())
