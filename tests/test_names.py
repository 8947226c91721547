"""A public name of a class or function has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import fedray

ROOT = Path(fedray.__file__).parent
FREE = ("algorithms", "trained")
"""Folders that may use a name of each other: a payload is called as in its paper."""
SAME = {
    "main": "the program of a module",
    "command": "the command of a module",
    "sync": "a folder with the disk, and with MLflow",
    "Entry": "an entry of a registry, and its description",
    "Experiment": "the typed experiment, and its face in Python",
}
"""Names with one meaning in several modules."""


def definitions(root: Path) -> dict[str, list[str]]:
    """Return the modules that define each public class and function at their top level."""
    found = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        if "templates" in path.parts:  # they become a user's files
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(root).as_posix())
    return found


def shared(root: Path) -> dict[str, list[str]]:
    """Return the names that a second module defines, except within `FREE`."""
    return {
        name: places
        for name, places in definitions(root).items()
        if len(places) > 1 and any(place.split("/")[0] not in FREE for place in places)
    }


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    return shared(ROOT)


def test_no_two_modules_define_one_name(names):
    assert {name: names[name] for name in names if name not in SAME} == {}


def test_every_exception_is_one(names):
    assert SAME.keys() <= names.keys()


def test_a_second_definition_is_found(tmp_path):
    for name, text in {"one.py": "def f(): pass", "two/three.py": "class f: pass"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert shared(tmp_path) == {"f": ["one.py", "two/three.py"]}
