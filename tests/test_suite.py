"""The code as ruff wants it, and the warnings that end a test."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_has_nothing_to_say(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "--no-cache", ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["train", "base", "configs", "model.position", "training.run", "tiny", __name__])
def test_a_warning_that_a_module_of_ours_causes_is_an_error(module):
    with pytest.raises(DeprecationWarning):
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module)


@pytest.mark.parametrize("module", ["torch", "transformers.training", "trainer", "database", "model_zoo.base"])
def test_a_warning_within_a_library_is_none(module):
    with warnings.catch_warnings(record=True) as caught:
        warnings.warn_explicit("old", DeprecationWarning, "file.py", 1, module)
    assert [warning.category for warning in caught] == [DeprecationWarning]
