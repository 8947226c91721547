"""The docstring at the head of a method's file, taken apart: prose, equations, deviations."""

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
        label: "Eq. (7)", or what it is in words.
        names: the functions, classes and methods that it is.
        file: where they are, below the package.
        note: what is said besides.
    """

    label: str
    names: tuple[str, ...]
    file: str
    note: str


class Head(NamedTuple):
    """What a method's file says of it.

    Attributes:
        prose: paragraphs, as they stand there, without the first line; indented blocks are kept.
        equations: in their order.
        deviations: the heading without its colon, and a Markdown list; both "" without any.
    """

    prose: list[str]
    equations: list[Equation]
    deviations: tuple[str, str]


def head_of(docstring: str, path: Path) -> Head:
    """Return the parts of a docstring.

    Args:
        docstring: as it stands in the file, with its indents.
        path: the file, in which the functions are unless a line names another.
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
    """Yield every line of a docstring that says where an equation is; arguments as `head_of`."""
    for label, target, note in _ROW.findall(docstring):
        elsewhere = _FILE.search(f"{target} {note}")
        file = path if elsewhere is None else _place(elsewhere[1])
        names = tuple(re.findall(r"[\w.]+", _FILE.sub("", target)))
        said = _FILE.sub("", note).strip()
        yield Equation(label, names, file.relative_to(PACKAGE).as_posix(), said)


def _place(file: str) -> Path:
    """Return a file that is named from the package or from the folder of methods."""
    return PACKAGE / file if (PACKAGE / file).is_file() else METHODS / file
