"""Alternative class names for texts, from shipped lists or files.

The shipped lists are FedGLCL's proxy texts: the classes of the shipped descriptions, such as ten of
DomainNet, and a hundred of ImageNet that are no classes of CIFAR-100, drawn once, since the paper
does not list its hundred.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import StringConstraints

from fedray.base.errors import UserError, nearest
from fedray.data.known import ids_among
from fedray.language.descriptions import FOLDER as DESCRIPTIONS
from fedray.language.descriptions import canonical_word, read_descriptions, shipped_names
from fedray.storage.files import read_typed

FOLDER = Path(__file__).parent / "names"
_Name = Annotated[str, StringConstraints(pattern=r"\S")]


def shipped_lists() -> list[str]:
    """Return the names of the shipped lists, sorted."""
    return sorted([*(path.stem for path in FOLDER.glob("*.json")), *shipped_names()])


def check_words(names: Sequence[str], remedy: str) -> None:
    """Raise a UserError, which ends in `remedy`, if class names are identifiers, not words."""
    if ids := ids_among(names):
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        raise UserError(
            f"the class names {', '.join(ids[:3])}{more} are no words, but texts are made of them; "
            f"{remedy}"
        )


Names: TypeAlias = Sequence[str] | Mapping[str, str]
"""Names of classes in the order of their labels, or by the names in the data."""


def names_for(names: Names | str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return alternative names for C classes, in the order of their labels.

    Args:
        names: the names, the name of a shipped list, or a JSON file with a list or a mapping.
        classes: the C names in the data.

    Raises:
        UserError: if no such list exists, the list does not have C names, it holds the data's own
            names in another order, or a mapping does not name each class; if a list is given for
            numbered classes whose labels are not in the order of the numbers.
    """
    chosen = load_names(names) if isinstance(names, str) else names
    words = [canonical_word(name) for name in classes]
    if isinstance(chosen, Mapping):
        by_word = {canonical_word(name): other for name, other in chosen.items()}
        if wrong := sorted(by_word.keys() ^ {*words}):
            raise UserError(
                f"text.names: '{wrong[0]}' is not in both the mapping and the data; give one name "
                f"for each of {', '.join(classes[:3])}, ... ({len(classes)} classes)"
            )
        return tuple(by_word[word] for word in words)
    chosen = tuple(chosen)
    by_number, is_shipped = sorted(classes, key=_by_number), names in shipped_lists()
    if not is_shipped and list(classes) == sorted(classes) != by_number:
        raise UserError(
            f"text.names is a list, but the labels of {', '.join(classes[:3])}, ... are not in the "
            f"order of their numbers ({', '.join(by_number[:3])}, ...); give a mapping, "
            f"text.names={{'{classes[0]}': NAME, '{classes[1]}': NAME, ...}}"
        )
    given = [canonical_word(name) for name in chosen]
    if words != given and sorted(words) == sorted(given):
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


def _by_number(name: str) -> list[tuple[str, int]]:
    """Return a key that sorts "class 2" before "class 10"."""
    return [(text, int(part or 0)) for text, part in re.findall(r"(\D*)(\d*)", name)]


def load_names(name_or_path: str) -> Names:
    """Return a shipped list by its name, or the list or mapping in a JSON file.

    Raises:
        UserError: if no such list exists, or it holds anything but names.
    """
    if name_or_path in shipped_names():
        return tuple(read_descriptions(DESCRIPTIONS / f"{name_or_path}.json"))
    path = Path(name_or_path).expanduser()
    if path.suffix != ".json":
        path = FOLDER / f"{name_or_path}.json"
        if name_or_path not in shipped_lists():
            raise UserError(
                f"text.names: there is no shipped list '{name_or_path}'; give a JSON file, the "
                f"names themselves, or a list.{nearest(name_or_path, shipped_lists())}"
            )
    expected = 'expected ["cat", "dog", ...] or {"1": "cat", "2": "dog", ...}'
    kind = list[_Name] | dict[str, _Name]
    names: Names = read_typed(path, kind, "text.names: the file", expected)
    return names
