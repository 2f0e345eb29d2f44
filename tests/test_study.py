"""The page of the study says what its results do."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
STUDY = runpy.run_path(str(DOCS / "study.py"))


def test_every_table_and_picture_of_the_study_is_made_from_its_results():
    page = (DOCS / "study.md").read_text(encoding="utf-8")
    assert STUDY["written"](page) == page
    pictures = STUDY["pictures"](page)
    assert pictures and all(file.read_text(encoding="utf-8") == text for file, text in pictures.items())
