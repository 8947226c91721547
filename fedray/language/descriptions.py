"""Read files of class descriptions, and match them to the classes of a data set."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from fedray.base.errors import UserError, nearest
from fedray.config import Frozen
from fedray.storage.files import read_typed

MOST_BYTES = 100_000_000
"""Maximal size of a file of descriptions; a thousand classes take about a million bytes."""
MOST_TEXTS = 100
"""Maximal number of descriptions of one class."""
FOLDER = Path(__file__).parent / "descriptions"
EXPECTED = (
    "expected for each class an object with Short Label, Fine-grained Descriptions (a list) and, "
    "if needed, Short Description and Long Description"
)

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Ignored = Annotated[Any, AfterValidator(lambda value: None)]


class ClassDescriptions(Frozen):
    """The descriptions of one class; the keys are those of the official FedTSP repository."""

    label: _Text = Field(alias="Short Label")
    """The class in a word or two: {label} of `text.template`."""
    short: _Text | None = Field(None, alias="Short Description")
    """One phrase, for style short."""
    fine: tuple[_Text, ...] = Field(
        alias="Fine-grained Descriptions", min_length=1, max_length=MOST_TEXTS
    )
    """Sentences about different visual aspects; equally many for every class (FedTSP: k = 3)."""
    long: _Text | None = Field(None, alias="Long Description")
    """A paragraph, for style long."""
    negatives: _Ignored = Field(None, alias="Hard Negatives", exclude=True)
    """Ignored; present in the official files."""


_File = Annotated[dict[str, ClassDescriptions], Field(min_length=1)]


def load_descriptions(
    name_or_path: str, class_names: Sequence[str]
) -> dict[str, ClassDescriptions]:
    """Read a shipped ("cifar10") or a JSON file of descriptions; return them by class, in order.

    Names match if they are equal after lower-casing and after replacing underscores and runs of
    blanks by one blank. The file may describe further classes.

    Raises:
        UserError: if the file is missing or has another form, two names match the same class, a
            class has no descriptions, or classes have different numbers of descriptions.
    """
    path = find_descriptions(name_or_path)
    where, described = f"text.descriptions: {path}", read_descriptions(path)
    names = by_canonical_name(described, where)
    wanted = by_canonical_name(class_names, "text.descriptions: the data set's classes")
    if missing := [name for key, name in wanted.items() if key not in names]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{where} has no descriptions of class '{missing[0]}'{more} ({len(described)} classes "
            f"described, {len(wanted)} needed); name a file of your classes (fedray data ROOT "
            "--descriptions FILE.json drafts it, fedray generate asks a language model), or set "
            "text.style=handcrafted, which needs no descriptions"
        )
    classes = {name: described[names[key]] for key, name in wanted.items()}
    numbers = {len(entry.fine): name for name, entry in classes.items()}
    if len(numbers) > 1:  # prototypes are means over them
        (one, first), (other, second), *_ = numbers.items()
        raise UserError(
            f"{where}: class '{first}' has {one} of \"Fine-grained Descriptions\", but class "
            f"'{second}' has {other}; give every class equally many"
        )
    return classes


def read_descriptions(path: Path) -> dict[str, ClassDescriptions]:
    """Read a JSON file of descriptions.

    Raises:
        UserError: if the file is unreadable or has another form.
    """
    descriptions: dict[str, ClassDescriptions] = read_typed(
        path, _File, "text.descriptions: the file", EXPECTED, MOST_BYTES
    )
    return descriptions


def by_canonical_name(names: Sequence[str] | Mapping[str, Any], where: str) -> dict[str, str]:
    """Return names by canonical name; raise a UserError if two have the same one."""
    originals: dict[str, str] = {}
    for name in names:
        other = originals.setdefault(canonical_word(name), name)
        if other != name:
            raise UserError(f"{where}: '{other}' and '{name}' are the same name; rename one")
    return originals


def display_name(name: str) -> str:
    """Return a class name as written in texts: composed, with one blank for blanks and underscores.

    Composed means Unicode's form NFC, in which é is one character.
    """
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def canonical_word(name: str) -> str:
    """Return a class name for comparisons: in lower case, with single blanks."""
    return display_name(name).casefold()


def shipped_names() -> list[str]:
    """Return the names of the shipped description files, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find_descriptions(name_or_path: str) -> Path:
    """Return the path of a description file, given by path or by the name of a shipped file.

    Raises:
        UserError: if no shipped file has this name, or the file does not exist.
    """
    if name_or_path in shipped_names():
        return FOLDER / f"{name_or_path}.json"
    path = Path(name_or_path).expanduser()
    if path.suffix != ".json" or not path.exists():
        raise UserError(
            f"text.descriptions: {name_or_path} is neither a shipped file nor a JSON file that "
            f"exists.{nearest(name_or_path, shipped_names())}"
        )
    return path


def blank(class_names: Sequence[str], texts: int = 3) -> dict[str, dict[str, Any]]:
    """Return a file to fill in, with the fields that style fine needs and k = 3 `texts`."""
    return {
        name: {"Short Label": display_name(name), "Fine-grained Descriptions": [""] * texts}
        for name in class_names
    }
