"""One file adds a plug-in."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from fedray.config.registry import Registry

# --- the registry --------------------------------------------------------------------------------

METHOD = """
from {package} import methods

@methods.add
class {cls}:
    name = "{name}"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """`package({file: (class, name)})` writes a package of plug-ins and gives its registry."""

    def package(files: dict[str, tuple[str, str]]) -> Registry:
        name = f"plugins_of_{tmp_path.name}".replace("-", "_")
        folder = tmp_path / name
        folder.mkdir()
        head = (
            f"from fedray.config.registry import Registry\nmethods = Registry('method', '{name}')\n"
        )
        (folder / "__init__.py").write_text(head)
        for file, (cls, called) in files.items():
            text = METHOD.format(package=name, cls=cls, name=called)
            (folder / f"{file}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return __import__(name).methods

    yield package
    for module in [m for m in sys.modules if m.startswith("plugins_of_")]:
        del sys.modules[module]


def test_a_file_in_the_package_is_a_method(package):
    methods = package({"mine": ("Mine", "mine"), "other": ("Other", "other")})
    assert methods.get("mine").__name__ == "Mine"
    # found by its file's name: nothing else was imported
    assert f"{methods.package}.other" not in sys.modules
    assert methods.names() == ["mine", "other"]


def test_a_name_need_not_be_the_files(package):
    methods = package({"some_file": ("Mine", "mine")})
    assert methods.get("mine").__name__ == "Mine"


def test_two_methods_of_one_name(package):
    methods = package({"a": ("One", "same"), "b": ("Two", "same")})
    with pytest.raises(ValueError, match="two methods are called 'same'"):
        methods.names()


def test_a_second_class_of_one_name_is_refused_and_the_same_one_imported_again_is_not(package):
    methods = package({"a": ("One", "same")})
    first = methods.get("same")
    methods.add(type("One", (), {"name": "same", "__module__": first.__module__}))
    assert methods.names() == ["same"]
    for other in (type("Two", (), {"name": "same"}), first()):
        with pytest.raises(ValueError, match="two methods are called 'same'"):
            methods.add(other)


@pytest.mark.parametrize("in_cell", [True, False])
def test_a_cell_registers_its_objects_anew_and_a_file_does_not(package, in_cell):
    module = {"__name__": "__main__", "methods": package({}), "Entry": SimpleNamespace}
    module |= {} if in_cell else {"__file__": "mine.py"}
    cell = "methods.add(Entry(name='mine', value={}))"
    exec(compile(cell.format(1), "mine.py", "exec"), module)
    with nullcontext() if in_cell else pytest.raises(ValueError, match="two methods"):
        exec(compile(cell.format(2), "mine.py", "exec"), module)
    assert module["methods"].get("mine").value == 1 + in_cell
