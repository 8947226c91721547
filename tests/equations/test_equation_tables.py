"""Every method's file lists its equations; each is a tagged function with a test of its number."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import CodeType, FrameType

import pytest

from _build.heads import METHODS as METHODS_FOLDER
from _build.heads import equations_of
from fedray.core import algorithms
from fedray.laws.conformance import serial, small_experiment, trace
from fedray.runtime.assembly import Assembly

TESTS = Path(__file__).parent
FILES = {
    path.relative_to(METHODS_FOLDER).with_suffix("").as_posix(): path
    for path in sorted(METHODS_FOLDER.glob("*/*.py"))
    if re.search(r"^@(core\.)?method\(", path.read_text(), re.M)
}


def rows(module: str) -> list[tuple[str, str, list[str]]]:
    """(label, file, names) of every line `label -> names (file)` of a module's docstring."""
    path = FILES[module]
    head = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
    return [(each.label, each.file, list(each.names)) for each in equations_of(head, path)]


METHODS = [module for module in FILES if module != "personalised/local"]
ROWS = [(method, *row) for method in METHODS for row in rows(method)]


def lookup(file: str, name: str):
    thing = importlib.import_module("fedray." + file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def test_every_method_has_a_table():
    known = {"alignfed", "fedavg", "fedproto", "fedtgp", "fedtsp"}
    assert known <= {Path(method).name for method in METHODS}
    assert [method for method in METHODS if not rows(method)] == []
    assert [label for label, _, _ in rows("text_guided/fedtsp")] == [
        f"Eq. ({n})" for n in range(2, 9)
    ]


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
    name = Path(method).name
    own = TESTS / f"test_{name}.py"
    begin = rf"^def test_({name}_)?" if own.exists() else rf"^def test_{name}_"
    files = [own] if own.exists() else TESTS.glob("test_*.py")
    begin = re.compile(rf"{begin}(eq\d+_)*eq{number}_", re.M)
    assert any(begin.search(path.read_text()) for path in files)


SWITCHED_ON = {
    "dp_fpl": [("algorithm.epsilon", 1.0)],
    "dp2fl": [("data.clients", 6), ("data.samples", 120), ("participation", 1.0)],
}
"""Keys without which a method does not run all that its table names."""


def codes_of(thing: object) -> set[CodeType]:
    """Return the code of a function, a property or the methods of a class."""
    if inspect.isclass(thing):
        return set().union(*map(codes_of, vars(thing).values()))
    for name in ("fget", "func", "__func__"):
        thing = getattr(thing, name, None) or thing
    code = getattr(inspect.unwrap(thing) if callable(thing) else thing, "__code__", None)
    return set() if code is None else {code}


def codes_of_name(file: str, name: str) -> set[CodeType]:
    """Return the codes of a name of a table; for a method of a class, those of subclasses, too."""
    owner, _, method = name.rpartition(".")
    if not owner:
        return codes_of(lookup(file, name))
    classes, base = [lookup(file, owner)], lookup(file, owner)
    for cls in classes:  # grows
        classes += cls.__subclasses__()
    found = [vars(cls)[method] for cls in (*classes, *base.__mro__) if method in vars(cls)]
    return set().union(*map(codes_of, found))


LONG = ["averaging/fedfa_anchors", "personalised/fedpac"]
LONG += [f"prompts/{name}" for name in ("cocoop", "crossings", "dp2fl", "fedmgp")]


@pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=[pytest.mark.slow] if m in LONG else []) for m in METHODS],
)
def test_a_run_runs_what_the_table_names(module):
    """Two rounds of the file's methods: a function that no method runs proves nothing about it."""
    home = f"fedray.algorithms.{module.replace('/', '.')}"
    ran = set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            ran.add(frame.f_code)

    for method in (entry for entry in algorithms.entries() if entry.__module__ == home):
        sets = [("rounds", 2), ("data.evolution", "none"), *SWITCHED_ON.get(method.name, [])]
        assembly = Assembly(small_experiment(method.name, sets))
        sys.setprofile(note)
        try:
            trace(assembly, serial)
        finally:
            sys.setprofile(None)
    named = {(file, name) for _, file, names in rows(module) for name in names}
    assert [name for file, name in sorted(named) if not codes_of_name(file, name) & ran] == []
