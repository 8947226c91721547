"""Lists of class names, shipped or in files, for texts under other names than the data's.

The shipped lists are those of FedGLCL's proxy texts: Office-Caltech-10's names (as the official
code spells them), DomainNet's ten, and a hundred of ImageNet's that are no class of CIFAR-100,
drawn once (the paper draws a hundred and does not list them).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints

from fedray.errors import UserError, nearest
from fedray.files import read_json
from fedray.language.descriptions import canonical_name

FOLDER = Path(__file__).parent / "names"
_Name = Annotated[str, StringConstraints(pattern=r"\S")]


def shipped_lists() -> list[str]:
    """Return the names of the shipped lists."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def names_for(names: Sequence[str] | str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return other names for C classes, in the order of their labels.

    Args:
        names: the names themselves, the name of a shipped list, or a JSON file of a list.
        classes: the C names in the data.

    Raises:
        UserError: if there is no such list, it holds anything but C names, or the data's own names
            in another order.
    """
    found = load_names(names) if isinstance(names, str) else tuple(names)
    ours, given = ([canonical_name(name) for name in each] for each in (classes, found))
    if ours != given and sorted(ours) == sorted(given):
        raise UserError(
            "text.names are the data's own class names in another order, so that texts would "
            f"describe other classes; leave text.names out, or give {', '.join(classes)}"
        )
    if len(found) != len(classes):
        where = f"={names}" if isinstance(names, str) else ""
        raise UserError(
            f"text.names{where} gives {len(found)} names for {len(classes)} classes; give one "
            "for each, in the order of the labels"
        )
    return found


def load_names(name_or_path: str) -> tuple[str, ...]:
    """Return a shipped list by its name, or the list in a JSON file.

    Raises:
        UserError: if there is none, or it holds anything but names.
    """
    if name_or_path.endswith(".json"):
        path = Path(name_or_path).expanduser()
    else:
        path = FOLDER / f"{name_or_path}.json"
        if name_or_path not in shipped_lists():
            raise UserError(
                f"text.names: there is no shipped list '{name_or_path}'; give one of "
                f"{', '.join(shipped_lists())}, a JSON file of a list, or the names themselves."
                f"{nearest(name_or_path, shipped_lists())}"
            )
    names = read_json(path, list[_Name], "text.names: the file", 'expected ["cat", "dog", ...]')
    return tuple(names)
