"""Parse the docstring at the head of a method's file: prose, equations, deviations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import fedray

PACKAGE = Path(fedray.__file__).parent
METHODS = PACKAGE / "algorithms"
_ROW = re.compile(r"^ {4}(\S.*?) +-> (.+?)(?: {2,}(.*))?$", re.MULTILINE)
_FILE = re.compile(r"\((\w+(?:/\w+)*\.py)\)")
_DEVIATIONS = "Deviations"


class Equation(NamedTuple):
    """A line `label -> names  note (file)`.

    Attributes:
        label: "Eq. (7)", or a description in words.
        names: the functions, classes and methods that implement the equation.
        file: the file of the code, relative to the package.
        note: the note, or "".
    """

    label: str
    names: tuple[str, ...]
    file: str
    note: str


class Head(NamedTuple):
    """The parsed docstring of a method's file.

    Attributes:
        prose: the paragraphs after the first line, with their indentation.
        equations: the equations, in order.
        deviations: the heading without its colon, and a Markdown list; both "" without deviations.
    """

    prose: list[str]
    equations: list[Equation]
    deviations: tuple[str, str]


def head_of(docstring: str, path: Path) -> Head:
    """Parse a docstring.

    Args:
        docstring: the docstring, with its indentation.
        path: the file; it holds the functions of all lines that name no other file.
    """
    prose: list[str] = []
    deviations = ("", "")
    for block in re.split(r"\n\s*\n", docstring.strip())[1:]:
        if block.startswith(_DEVIATIONS):
            heading, _, items = block.partition("\n")
            deviations = (heading.rstrip(":"), dedent(items))
        elif not _ROW.match(block):
            prose.append(block)
    return Head(prose, list(equations_of(docstring, path)), deviations)


def equations_of(docstring: str, path: Path) -> Iterator[Equation]:
    """Yield the equations that the lines of a docstring name; arguments as for `head_of`."""
    for label, target, note in _ROW.findall(docstring):
        elsewhere = _FILE.search(f"{target} {note}")
        file = path if elsewhere is None else _place(elsewhere[1])
        names = tuple(re.findall(r"[\w.]+", _FILE.sub("", target)))
        text = _FILE.sub("", note).strip()
        yield Equation(label, names, file.relative_to(PACKAGE).as_posix(), text)


def _place(file: str) -> Path:
    """Return the path of a file given relative to the package or to the folder of methods."""
    return PACKAGE / file if (PACKAGE / file).is_file() else METHODS / file
