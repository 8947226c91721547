"""The generated pages are up to date, and ARCHITECTURE.md names what is there."""

from __future__ import annotations

import re

import pytest
from lab import check_line
from pages import ROOT

from _build.__main__ import command, pages
from fedray.command import run


@pytest.mark.slow
def test_readme_and_pages_are_up_to_date():
    outdated = [path.name for path, text in pages(ROOT).items() if path.read_text() != text]
    assert outdated == [], "run `make docs`"


@pytest.mark.slow
def test_docs_writes_what_check_misses(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    words = ["--root", str(tmp_path)]
    assert run(command, [*words, "--check"]) == 1
    assert "docs/keys.md" in capsys.readouterr().out
    assert run(command, words) == 0
    assert "| `data.partition` |" in (tmp_path / "docs" / "keys.md").read_text()
    assert run(command, [*words, "--check"]) == 0
    assert run(command, [*words, "--site"]) == 0
    method = (tmp_path / "docs" / "methods" / "fedtsp.md").read_text()
    assert "| Eq. (7) | [`server_loss`](../../fedray/algorithms/text_guided/fedtsp.py#" in method
    capsys.readouterr()
    assert run(command, ["--root", str(tmp_path / "nowhere")]) == 2
    check_line(capsys.readouterr().err.strip(), "docs")


def test_what_the_page_about_the_architecture_names_is_there():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text() for path in (ROOT / "fedray").rglob("*.py"))
    names = re.findall(r"`([A-Z]\w+)\.(\w+)`", page)
    assert len(names) > 10
    for owner, name in names:
        assert re.search(rf"class {owner}\b", source), owner
        assert re.search(rf"(def |self\.|    ){name}\b", source), name
    for file in re.findall(r"`(\w+/\w+\.py)`", page):
        assert (ROOT / "fedray" / file).is_file() or (ROOT / file).is_file(), file
