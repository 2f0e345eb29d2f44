"""What the numbers of a run depend on besides its config and its text."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent


@cache
def versions() -> dict[str, str]:
    """Versions of Python and the libraries, and this project's commit if its folder is a git checkout."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}  # with the build, as in +cu130
    found |= {name: version(name) for name in ("numpy", "tokenizers")}
    # Given explicitly, so that git ignores a checkout around this folder, and who owns it.
    git = ["git", "--git-dir", str(ROOT / ".git"), "--work-tree", str(ROOT), "describe", "--always", "--dirty"]
    try:
        found["whereabouts"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    return found
