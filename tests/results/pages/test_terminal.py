"""Sections on a terminal: wrapped at its width, and nothing left out without a word."""

from __future__ import annotations

import io

from rich.console import Console

from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections

SECTION = Section(
    "Claims",
    ["a paragraph of words " * 8],
    ["claim", "difference", "", "verdict", "source"],
    [
        ["mine @ Dir(0.5) > another @ Dir(0.5)", "+10.8 [9.1, 12.4]", "", "**holds**", "Table 2"],
        ["mine > `third`", "-0.2 [-1.3, 0.9]", "", "**undecided: 529 seeds would decide**", "ours"],
    ],
    ["below the cells"],
    ["an item of words " * 8],
)


def printed(width: int) -> str:
    file = io.StringIO()
    print_sections([SECTION], Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_no_line_is_longer_than_the_terminal():
    text = printed(80)
    assert max(map(len, text.splitlines())) <= 80
    assert "*" not in text
    assert "`" not in text


def test_cells_are_wrapped_and_numbers_stay_whole():
    text = printed(80)
    assert "+10.8 [9.1, 12.4]" in text
    assert "holds" in text
    assert "undecided: 529 seeds would decide" not in text  # in two lines
    assert all(words in text for words in ("undecided: 529", "decide", "Table 2"))


def test_on_a_narrow_terminal_words_are_folded_and_nothing_is_left_out():
    text = printed(40)
    assert "+10.8 [9.1, 12.4]" in text
    assert "…" not in text


def test_on_a_wide_terminal_every_cell_has_one_line():
    assert "undecided: 529 seeds would decide" in printed(200)
