"""Every method's file lists its equations; each is a tagged function with a test of its number."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from _build.heads import METHODS as METHODS_FOLDER
from _build.heads import equations_of

TESTS = Path(__file__).parent
FILES = {
    path.stem: path
    for path in sorted(METHODS_FOLDER.glob("*/*.py"))
    if "algorithms.add\n" in path.read_text()
}


def rows(module: str) -> list[tuple[str, str, list[str]]]:
    """(label, file, names) of every line `label -> names (file)` of a module's docstring."""
    path = FILES[module]
    head = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
    return [(each.label, each.file, list(each.names)) for each in equations_of(head, path)]


METHODS = [module for module in FILES if module != "local"]
ROWS = [(method, *row) for method in METHODS for row in rows(method)]


def lookup(file: str, name: str):
    thing = importlib.import_module("fedray." + file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def test_every_method_has_a_table():
    assert {"alignfed", "fedavg", "fedproto", "fedtgp", "fedtsp"} <= set(METHODS)
    assert [method for method in METHODS if not rows(method)] == []
    assert [label for label, _, _ in rows("fedtsp")] == [f"Eq. ({n})" for n in range(2, 9)]


@pytest.mark.parametrize(("method", "label", "file", "names"), ROWS)
def test_what_the_table_names_is_there(method, label, file, names):
    assert names
    for name in names:
        assert callable(lookup(file, name))


NUMBERED = [row for row in ROWS if row[1].startswith("Eq. (")]


@pytest.mark.parametrize(("method", "label", "file", "names"), NUMBERED)
def test_a_numbered_equation_is_tagged_and_has_a_test_of_its_number(method, label, file, names):
    number = re.fullmatch(r"Eq\. \((\d+)\)", label)[1]
    assert any(label in (lookup(file, name).__doc__ or "") for name in names)
    tests = ast.parse((TESTS / f"test_{method}.py").read_text()).body
    functions = [node.name for node in tests if isinstance(node, ast.FunctionDef)]
    assert [name for name in functions if re.match(rf"test_(eq\d+_)*eq{number}_", name)]
