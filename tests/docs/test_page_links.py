"""Every link inside the documentation leads somewhere, also as the host of the code shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from pages import DOCS, ROOT, pages

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of the wheel")

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
TREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """A page's headings as a browser calls them."""
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", page.read_text("utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        again = found.count(slug)
        found.append(slug)
        if again:
            found.append(f"{slug}-{again}")
    return frozenset(found)


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in LINK.findall(CODE.sub("`", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.exists() and target.is_relative_to(ROOT)
        if there and anchor and target.suffix == ".md":
            there = anchor in anchors(target)
        if there and anchor and target.suffix == ".py":
            there = anchor.split(".")[0] in names(target)
        if not there:
            wrong.append(link)
    return wrong


@cache
def names(file: Path) -> frozenset[str]:
    """What a module defines, or imports from elsewhere."""
    tree = ast.parse(file.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    assert broken(page) == []


def test_a_dead_link_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("test_page_links.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# One run\n## One run\n[a](page.md#one-run-1)\n")
    (tmp_path / "code.py").write_text("class Found:\n    pass\n")
    other = tmp_path / "other.md"
    other.write_text("[x](no.md) [y](page.md#two) `[c](d.md)` [z](code.py#Found.f) [w](code.py#f)")
    assert broken(tmp_path / "page.md") == []
    assert broken(other) == ["no.md", "page.md#two", "code.py#f"]


def test_every_page_is_in_the_site():
    listed = {
        (index.parent / name).resolve()
        for index in DOCS.rglob("*.md")
        for tree in TREE.findall(index.read_text("utf-8"))
        for name in tree.split()
        if not name.startswith(":")
    }
    there = {page.with_suffix("") for page in DOCS.rglob("*.md")}
    tables = {page for page in there if page.is_relative_to(DOCS / "results")}
    assert there - listed - tables == {DOCS / "index"}
