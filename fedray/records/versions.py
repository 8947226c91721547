"""Versions of what makes the numbers."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("fedray", "torch", "torchvision", "transformers", "numpy", "ray", "optuna")
MADE_BY = ("git", "fedray", "torch", "numpy")
"""Of the versions, those of what makes numbers, whatever a run is."""


@cache
def versions() -> dict[str, str]:
    """Versions of Python and the packages, and the git commit when run from a checkout."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    commit = git_commit()
    if commit:
        found["git"] = commit
    return found


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from, or None."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
