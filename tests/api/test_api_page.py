"""The examples of docs/api.md run as they stand there, in their order, in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import predict
from pages import DOCS, ROOT, blocks
from PIL import Image

import fedray
from fedray.studies.file import plan_study

PAGE = DOCS / "api.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs/ is not part of the wheel")


@pytest.mark.slow
def test_every_example_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for text in blocks(PAGE, "python"):
        exec(compile(text, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "False" in said
    assert list(Path("runs/board").iterdir())
    assert [path.name for path in Path("exported").iterdir()] == ["model.safetensors"]
    Image.fromarray(np.zeros((20, 20), np.uint8)).save("image.png")
    lines = [line for text in blocks(PAGE, "") for line in text.splitlines()]
    commands = [line for line in lines if "predict runs" in line]
    assert len(commands) == 2
    for command in commands:
        assert predict(shlex.split(command)[2:]) == 0, capsys.readouterr().err
    assert "the model of client 1, round " in capsys.readouterr().out


def test_the_table_that_is_named_is_there():
    text = PAGE.read_text()
    name, scale = re.search(r'fedray\.Table\("(\w+)", scale="(\w+)"\)', text).groups()
    assert plan_study("table", name, scale=scale).name == name


def test_keys_that_the_page_names_are_keys():
    config = fedray.Experiment("fedavg_digits").config["keep"]
    named = set(re.findall(r"^\| `keep\.(\w+)=", PAGE.read_text(), re.MULTILINE))
    assert named == set(config)


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "debugging.md"])
def test_the_example_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    (example,) = blocks(page, "python")
    small = example.replace(".train()", '.train(executor="serial")').replace("rounds=5", "rounds=1")
    exec(compile(small, page.name, "exec"), {})
    assert (tmp_path / "results" / "runs").is_dir() or (tmp_path / "runs" / "look").is_dir()
