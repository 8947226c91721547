"""Texts of classes, and the words and sentences that the text tower is taught."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedray.language.descriptions import canonical_name

USUAL_FRAME = "a photo of a {}."
"""What the teacher reads a noun in; it tells the picture's meaning of a word from its others."""

FRAMES: tuple[str, ...] = (
    "{}",
    "{}.",
    "a {}",
    "the {}",
    USUAL_FRAME,
    USUAL_FRAME,
    "a photo of the {}.",
    "a photo of {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a photo of one {}.",
    "a photo of a {}",
    "a blurry photo of a {}.",
    "a close-up photo of a {}.",
    "a photo of a small {}.",
    "a photo of a large {}.",
    "this is a {}.",
    "there is a {} in this picture.",
)
"""What may stand around a noun without changing what is meant; the usual one stands twice."""

LEVELS = 3
"""A class has a name, a kind and a wider kind: golden retriever, dog, animal."""


@cache
def shipped() -> dict[str, tuple[str, ...]]:
    """For each class known by captions.json, normalised, its `LEVELS` nouns."""
    text = (Path(__file__).parent / "captions.json").read_text(encoding="utf-8")
    return {canonical_name(name): tuple(nouns) for name, nouns in json.loads(text).items()}


def nouns_of(name: str, *, known: bool) -> tuple[str, ...]:
    """The `LEVELS` nouns of a class; a class without an entry is its own kind.

    Args:
        name: as the data set has it.
        known: whether to look into captions.json.
    """
    plain = canonical_name(name)
    found = shipped().get(plain) if known else None
    return found or (plain,) * LEVELS


def levels_of(
    class_names: Sequence[str], *, known: bool
) -> tuple[list[list[str]], list[list[int]]]:
    """The distinct nouns of each level, and each class's position in them.

    Args:
        class_names: C classes.
        known: whether to look into captions.json.

    Returns:
        `LEVELS` sorted lists of nouns, and `LEVELS` lists of C positions.
    """
    rows = [nouns_of(name, known=known) for name in class_names]
    nouns = [sorted({row[level] for row in rows}) for level in range(LEVELS)]
    positions = [[nouns[level].index(row[level]) for row in rows] for level in range(LEVELS)]
    return nouns, positions
