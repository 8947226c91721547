"""Alternative class names for texts, from shipped lists or files.

The shipped lists are FedGLCL's proxy texts: the classes of the shipped descriptions, such as ten of
DomainNet, and a hundred of ImageNet that are no classes of CIFAR-100, drawn once, since the paper
does not list its hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import StringConstraints

from fedray.data.known import ids_among
from fedray.errors import UserError, nearest
from fedray.language.descriptions import FOLDER as DESCRIPTIONS
from fedray.language.descriptions import canonical_word, read_descriptions, shipped_names
from fedray.storage.json_files import read_typed

FOLDER = Path(__file__).parent / "names"
_Name = Annotated[str, StringConstraints(pattern=r"\S")]


def shipped_lists() -> list[str]:
    """Return the names of the shipped lists, sorted."""
    return sorted([*(path.stem for path in FOLDER.glob("*.json")), *shipped_names()])


def check_words(names: Sequence[str], remedy: str) -> None:
    """Refuse class names that are no words, of which no text encoder can make sense.

    Args:
        names: the class names.
        remedy: how to give other names, as the end of the message.

    Raises:
        UserError: for the first names that look like identifiers.
    """
    if ids := ids_among(names):
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        raise UserError(
            f"the class names {', '.join(ids[:3])}{more} are no words, but texts are made of them; "
            f"{remedy}"
        )


def names_for(names: Sequence[str] | str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return alternative names for C classes, in the order of their labels.

    Args:
        names: the names, the name of a shipped list, or a JSON file with a list.
        classes: the C names in the data.

    Raises:
        UserError: if no such list exists, the list does not have C names, or it holds the data's
            own names in another order.
    """
    chosen = load_names(names) if isinstance(names, str) else tuple(names)
    old, new = ([canonical_word(name) for name in part] for part in (classes, chosen))
    if old != new and sorted(old) == sorted(new):
        raise UserError(
            "text.names are the data's own class names in another order, so that texts would "
            f"describe other classes; leave text.names out, or give {', '.join(classes)}"
        )
    if len(chosen) != len(classes):
        where = f"={names}" if isinstance(names, str) else ""
        raise UserError(
            f"text.names{where} gives {len(chosen)} names for {len(classes)} classes; give one "
            "for each, in the order of the labels"
        )
    return chosen


def load_names(name_or_path: str) -> tuple[str, ...]:
    """Return a shipped list by its name, or the list in a JSON file.

    Raises:
        UserError: if no such list exists, or it holds anything but names.
    """
    if name_or_path.endswith(".json"):
        path = Path(name_or_path).expanduser()
    else:
        if name_or_path in shipped_names():
            return tuple(read_descriptions(DESCRIPTIONS / f"{name_or_path}.json"))
        path = FOLDER / f"{name_or_path}.json"
        if name_or_path not in shipped_lists():
            raise UserError(
                f"text.names: there is no shipped list '{name_or_path}'; give one of "
                f"{', '.join(shipped_lists())}, a JSON file of a list, or the names themselves."
                f"{nearest(name_or_path, shipped_lists())}"
            )
    names = read_typed(path, list[_Name], "text.names: the file", 'expected ["cat", "dog", ...]')
    return tuple(names)
