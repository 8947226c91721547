"""HTML in names and texts of users is shown on pages, never interpreted."""

from __future__ import annotations

import pytest

from fedray.base.markdown import escape_html, markdown_table
from fedray.results.pages.page import Picture, Section, html, markdown

NAME = "FedX<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("</b> <!-- c --> <?php", "&lt;/b> &lt;!-- c --> &lt;?php"),
        ("p < 0.05 and a<-b", "p < 0.05 and a<-b"),
        ("`<b>` <b>", "`<b>` &lt;b>"),
        ("a ` <b>", "a ` &lt;b>"),
        ("``<b>` <i>", "``&lt;b>` &lt;i>"),
        ("one `\n<b>` two", "one `\n&lt;b>` two"),
    ],
)
def test_tags_are_escaped_outside_of_code(text, expected):
    assert escape_html(text) == expected
    assert escape_html(expected) == expected


def test_no_part_of_a_page_has_html():
    sections = [
        Section(NAME, [NAME], [NAME, "n"], [[NAME, "1"]], [NAME], [NAME]),
        Section(NAME, [f"a ` lone {NAME}"], ["`", "x"], [["a`", NAME], ["`", NAME]]),
    ]
    page = markdown(sections)
    assert page.count("&lt;script>") == 10
    assert not any(tag in page for tag in ("<script", "<img"))
    assert "<" not in markdown_table([NAME, "n"], [["`", NAME], [NAME, "`"]])
    text = f"{NAME} [here](http://example.org) ![x](http://example.org/x.png)"
    rows = [["a", "1"], ["b", "**refuted** (again)"]]
    picture = Section(text, pictures=[Picture("a curve", "curve.png")])
    body = html([picture, Section("", [text], [text, "n"], rows, [text])]).split("<body>")[1]
    assert body.count("<img") == body.count('<img src="curve.png"') == 1
    assert not any(tag in body for tag in ("<script", "<a "))
    assert '<td style="text-align:right">1</td>' in body
    assert "<strong>refuted</strong> (again)" in body
