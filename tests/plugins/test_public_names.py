"""What authors import: a change of a name or a signature is a decision, not an accident.

python tests/plugins/test_public_names.py    writes the file again
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import fedray.plugin
from fedray.core import Algorithm, LocalTraining

GOLDEN = Path(__file__).with_name("public_names.txt")


def described(name: str, value: object) -> Iterator[str]:
    """Yield the name with its signature, and of a class those of its public methods."""
    if not inspect.isclass(value):
        yield f"{name}{inspect.signature(value)}" if inspect.isfunction(value) else name
        return
    yield f"class {name}"
    for attribute in sorted(vars(value)):
        method = inspect.getattr_static(value, attribute)
        if isinstance(method, classmethod | staticmethod):
            method = method.__func__
        if inspect.isfunction(method) and not attribute.startswith("_"):
            yield f"    {attribute}{inspect.signature(method)}"


def names() -> str:
    """The text of the file."""
    public = {name: getattr(fedray.plugin, name) for name in fedray.plugin.__all__}
    lines = [line for name in sorted(public) for line in described(name, public[name])]
    return re.sub(r" at 0x\w+", "", "\n".join(lines)) + "\n"


def test_names_and_signatures_are_those_of_the_file():
    assert names() == GOLDEN.read_text(encoding="utf-8")


def test_authors_import_few_names():
    imported = {name for name in vars(fedray.plugin) if not name.startswith("_")}
    assert imported == set(fedray.plugin.__all__)
    assert len(imported) <= 40


def test_a_method_has_few_hooks():
    """Functions that an author may override; what a method declares is a class attribute."""
    hooks = {
        name
        for owner in (Algorithm, LocalTraining)
        for name, value in vars(owner).items()
        if not name.startswith("_") and (callable(value) or hasattr(value, "__get__"))
        if not isinstance(value, type | dict) and not getattr(value, "__final__", False)
    }
    assert "loss" in hooks
    assert len(hooks) <= 18, sorted(hooks)


if __name__ == "__main__":
    GOLDEN.write_text(names(), encoding="utf-8")
