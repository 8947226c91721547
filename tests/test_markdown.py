"""HTML in names and texts of users is shown on pages, never interpreted."""

from __future__ import annotations

import pytest

from fedray.markdown import escape_html, markdown_table
from fedray.results.pages.page import Section, markdown

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>", "&lt;b>"),
        ("</b> <!-- c --> <?php", "&lt;/b> &lt;!-- c --> &lt;?php"),
        ("p < 0.05 and a<-b", "p < 0.05 and a<-b"),
        ("`<b>` <b>", "`<b>` &lt;b>"),
        ("a ` <b>", "a ` &lt;b>"),
        ("``<b>` <i>", "``&lt;b>` &lt;i>"),
        ("one `\n<b>` two", "one `\n&lt;b>` two"),
        ("> a quote", "> a quote"),
    ],
)
def test_tags_are_escaped_outside_of_code(text, expected):
    assert escape_html(text) == expected
    assert escape_html(expected) == expected


def test_no_part_of_a_page_has_html():
    name = f"FedX{SCRIPT}{IMAGE}"
    page = markdown(
        [
            Section(name, [name], [name, "n"], [[name, "1"]], [name], [name]),
            Section(name, [f"a ` lone {name}"], ["`", "x"], [["a`", name], ["`", name]]),
        ]
    )
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script>") == 10
    assert "<" not in markdown_table([name, "n"], [["`", name], [name, "`"]])
