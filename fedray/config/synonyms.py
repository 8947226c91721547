"""Suggestions for unknown keys, from the words of other tools and papers in synonyms.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import yaml

CHOOSES: Mapping[str, str] = MappingProxyType(
    {
        "data": "data.source",
        "model": "model.group",
        "text": "text.encoder",
        "report": "report.select",
    }
)
"""Sections, and the key that is probably meant where one is given a plain value."""


@cache
def synonyms() -> Mapping[str, list[str]]:
    """Return the words of others for each key that has some."""
    text = Path(__file__).with_name("synonyms.yaml").read_text(encoding="utf-8")
    found: dict[str, list[str]] = yaml.safe_load(text)
    return found


def key_for(word: str) -> str | None:
    """Return the key that others call so; None if nobody does.

    Args:
        word: the last part of an unknown key, with small or large letters, dashes or underscores.
    """
    wanted = word.lower().replace("-", "_")
    return next((key for key, words in synonyms().items() if wanted in words), None)
