"""CLIP models; small/ holds our own, as open_clip's `local-dir:` reads it."""

from __future__ import annotations

from pathlib import Path


def small_clip_folder() -> Path:
    """The folder of the small CLIP that is part of this package; its README.md says how good."""
    return Path(__file__).parent / "small"
