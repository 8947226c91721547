"""Numbers that several pages state agree with one another and with what they count."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable

import pytest
from pages import DOCS, ROOT, pages, pinned

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of the wheel")


def oldest_python() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["requires-python"].removeprefix(">=")


COUNTED: dict[str, Callable[[], str]] = {
    r"Python (3\.\d+) or newer": oldest_python,
    r"the same Ray, (\d+\.\d+\.\d+)": lambda: pinned("ray"),
}
"""Patterns of sentences, and what the number in them must be."""
REPEATED = {
    r"installation takes ([\d.]+ GB)|CUDA and takes ([\d.]+ GB)": 1,
    r"ends in about (\d+) seconds[:,] (?:with exit code 1|`failed: Ray)": 2,
}
"""Patterns of sentences that only a measurement can check, and on how many pages they stand."""


def stated(pattern: str) -> list[tuple[str, str]]:
    """Each page's name and the number that it states."""
    return [
        (page.relative_to(ROOT).as_posix(), next(filter(None, found.groups())))
        for page in pages()
        for found in re.finditer(pattern, page.read_text(encoding="utf-8"))
    ]


def differing(found: Iterable[tuple[str, str]], right: str) -> list[tuple[str, str]]:
    return [(page, number) for page, number in found if number != right]


@pytest.mark.parametrize("pattern", COUNTED)
def test_a_stated_number_is_what_it_counts(pattern):
    found = stated(pattern)
    assert found, "no page has this sentence any more: change the pattern"
    assert differing(found, COUNTED[pattern]()) == []


@pytest.mark.parametrize("pattern", REPEATED)
def test_pages_state_the_same_number(pattern):
    found = stated(pattern)
    assert len(found) >= REPEATED[pattern]
    assert differing(found, found[0][1]) == []
