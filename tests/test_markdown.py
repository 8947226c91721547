"""HTML in names and texts of users is shown on pages, never interpreted."""

from __future__ import annotations

import pytest

from fedray.base.markdown import escape_html, markdown_table
from fedray.results.pages.page import Picture, Section, html, markdown

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


def test_a_page_in_html_has_its_own_pictures_and_no_links():
    name = f"FedX{SCRIPT}{IMAGE} [here](http://example.org) ![x](http://example.org/x.png)"
    picture = Picture("a curve", "curve.png")
    rows = [["a", "1"], ["b", "**refuted** (again)"]]
    page = html([Section(name, pictures=[picture]), Section("", [name], [name, "n"], rows, [name])])
    body = page.split("<body>")[1]
    assert body.count("<img") == body.count('<img src="curve.png"') == 1
    assert "<script" not in page
    assert "<a " not in body
    assert '<td style="text-align:right">1</td>' in body
    assert "<strong>refuted</strong> (again)" in body


def test_names_with_double_underscores_stay_whole():
    assert escape_html("A.__init__() of `__b__`") == r"A.\_\_init\_\_() of `__b__`"
