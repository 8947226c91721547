"""Sections on a terminal: wrapped at its width, and nothing left out without a word."""

from __future__ import annotations

import io

import pytest
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


@pytest.mark.parametrize("width", [80, 60, 40])
def test_no_line_is_longer_than_the_terminal(width):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    assert "*" not in text
    assert "`" not in text


def test_cells_are_wrapped_and_numbers_stay_whole():
    text = printed(80)
    assert "+10.8 [9.1, 12.4]" in text
    assert "holds" in text
    assert "undecided: 529 seeds would decide" not in text  # in two lines
    assert all(words in text for words in ("undecided: 529", "decide", "Table 2"))
    assert "Too wide" not in text


def test_columns_that_do_not_fit_are_named():
    text = printed(50)
    assert "+10.8 [9.1, 12.4]" in text
    assert "Columns omitted for width: source." in text
    assert "Table 2" not in text


def test_on_a_wide_terminal_every_cell_has_one_line():
    assert "undecided: 529 seeds would decide" in printed(200)
