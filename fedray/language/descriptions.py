"""Descriptions of classes: files of them, read, checked and matched to a data set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from fedray.config import Frozen
from fedray.errors import UserError, nearest, one_line
from fedray.files import read_text

MOST_BYTES = 100_000_000
"""Of a file of descriptions; a thousand classes have a million."""

MOST_TEXTS = 100
"""Descriptions of one class."""

FOLDER = Path(__file__).parent / "descriptions"

_IGNORED_KEY = "Hard Negatives"  # in the official files; no style uses it

_Text = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1)]


class ClassDescriptions(Frozen):
    """The descriptions of one class; the keys are those of the official FedTSP repository.

    A file may also hold "Hard Negatives", as the official ones do; they are ignored.
    """

    label: _Text = Field(alias="Short Label")
    """The class in a word or two."""
    short: _Text | None = Field(None, alias="Short Description")
    """One phrase; needed by style short."""
    fine: tuple[_Text, ...] = Field(
        alias="Fine-grained Descriptions", min_length=1, max_length=MOST_TEXTS
    )
    """Sentences, each on another aspect of the look: three (FedTSP's k), or as many as a source
    gives, as many for every class."""
    long: _Text | None = Field(None, alias="Long Description")
    """A paragraph; needed by style long."""


@dataclass(frozen=True)
class Descriptions:
    """Descriptions of every class of a data set.

    Attributes:
        source: the file they come from.
        classes: for each class name of the data set, in its order, its descriptions.
    """

    source: str
    classes: Mapping[str, ClassDescriptions]


def load_descriptions(name_or_path: str, class_names: Sequence[str]) -> Descriptions:
    """Read a JSON file of descriptions and match it to a data set's classes.

    Names match when they are equal after lower-casing and turning underscores and runs of blanks
    into one blank. The file may describe further classes.

    Args:
        name_or_path: the name of a shipped file ("cifar10"), or the path of a JSON file.
        class_names: the classes, in the order of their labels.

    Returns:
        One entry per class name, in the given order.

    Raises:
        UserError: when the file is missing or no JSON object, two names in it mean the same class,
            a class has no descriptions, or an entry has a missing, empty or superfluous part.
    """
    path = find_descriptions(name_or_path)
    described = _by_canonical_name(path)
    wanted = _distinct(class_names)
    missing = [name for key, name in wanted.items() if key not in described]
    if missing:
        raise _not_described(missing, path, [name for name, _ in described.values()], len(wanted))
    classes = {
        name: check_entry(name, described[key][1], f"text.descriptions: {path}")
        for key, name in wanted.items()
    }
    _check_as_many(classes, path)
    return Descriptions(str(path), classes)


def _check_as_many(classes: Mapping[str, ClassDescriptions], path: Path) -> None:
    """Check that every class has as many texts: prototypes are means over as many for all."""
    first, *others = classes
    usual = len(classes[first].fine)
    for name in others:
        if len(classes[name].fine) != usual:
            raise UserError(
                f"text.descriptions: {path}, class '{name}': \"Fine-grained Descriptions\" has "
                f"{len(classes[name].fine)} texts, and {usual} of class '{first}'; give every "
                "class as many"
            )


def display_name(name: str) -> str:
    """A class name as texts show it: underscores and runs of blanks become one blank."""
    return " ".join(name.replace("_", " ").split())


def canonical_name(name: str) -> str:
    """A class name without differences of case, underscores and blanks: equal for equal classes."""
    return display_name(name).casefold()


def _by_canonical_name(path: Path) -> dict[str, tuple[str, Any]]:
    """A file's entries, each with its name there."""
    described: dict[str, tuple[str, Any]] = {}
    for name, entry in _read(path):
        first_name, first_entry = described.setdefault(canonical_name(name), (name, entry))
        if first_entry is not entry:
            raise UserError(
                f"text.descriptions: {path} describes '{first_name}' and '{name}', which are the "
                "same name; remove one of them"
            )
    return described


def _distinct(class_names: Sequence[str]) -> dict[str, str]:
    """The class names by canonical name, in their order."""
    names: dict[str, str] = {}
    for name in class_names:
        other = names.setdefault(canonical_name(name), name)
        if other != name:
            raise UserError(
                f"the data set has classes '{other}' and '{name}', which text.descriptions cannot "
                "distinguish; rename one of them in the data set"
            )
    return names


def _not_described(
    missing: Sequence[str], path: Path, described: Sequence[str], wanted: int
) -> UserError:
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    hint = nearest(missing[0], described) if len(described) <= 20 else ""
    return UserError(
        f"text.descriptions: {path} has no descriptions of class '{missing[0]}'{more} "
        f"({len(described)} classes described, {wanted} wanted).{hint} Give a file of your "
        "classes with text.descriptions=FILE.json (fedray data ROOT --descriptions FILE.json "
        "drafts it, fedray generate asks a language model), or use text.style=handcrafted, "
        "which needs none"
    )


def shipped_names() -> list[str]:
    """The names of the shipped files."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find_descriptions(name_or_path: str) -> Path:
    """The file of a shipped name or a path.

    Raises:
        UserError: when there is no such file.
    """
    if name_or_path.endswith(".json") or "/" in name_or_path or "\\" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.exists():
            raise UserError(f"text.descriptions: the file {path} does not exist")
        return path
    path = FOLDER / f"{name_or_path}.json"
    if not path.is_file():
        raise UserError(
            f"text.descriptions: there are no shipped descriptions '{name_or_path}'; give one of "
            f"these or the path of a JSON file.{nearest(name_or_path, shipped_names())}"
        )
    return path


def blank(class_names: Sequence[str], texts: int = 3) -> dict[str, dict[str, Any]]:
    """A file's content to fill in: what style fine needs of each class.

    Args:
        class_names: the classes.
        texts: descriptions of each (FedTSP: k = 3).
    """
    return {
        name: {"Short Label": display_name(name), "Fine-grained Descriptions": [""] * texts}
        for name in class_names
    }


def check_entry(name: str, entry: Any, where: str, texts: int | None = None) -> ClassDescriptions:
    """Check the entry of one class, from a file or a language model.

    Args:
        name: the class.
        entry: plain data.
        where: the beginning of an error message: key and file.
        texts: how many fine-grained descriptions there must be; None for any number.

    Raises:
        UserError: naming the class, the part that is wrong and what was expected.
    """
    if not isinstance(entry, dict):
        raise UserError(
            f"{where}, class '{name}': found {type(entry).__name__}, expected an object with "
            '"Short Label", "Short Description", "Fine-grained Descriptions", "Long Description"'
        )
    known = {key: value for key, value in entry.items() if key != _IGNORED_KEY}
    # By alias only: keys must be spelled as in the published files.
    try:
        checked = ClassDescriptions.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        raise UserError(f"{where}, class '{name}': {_reason(error, entry)}") from None
    if texts is not None and len(checked.fine) != texts:
        raise UserError(
            f"{where}, class '{name}': \"Fine-grained Descriptions\" has {len(checked.fine)} "
            f"texts, expected {texts}"
        )
    return checked


def _reason(error: ValidationError, entry: dict[str, Any]) -> str:
    first = error.errors()[0]
    part = str(first["loc"][0])
    keys = [field.alias or "" for field in ClassDescriptions.model_fields.values()]
    if first["type"] == "extra_forbidden":
        return f'unknown key "{part}".{nearest(part, keys)}'
    found = entry.get(part)
    if part == "Fine-grained Descriptions":
        if isinstance(found, list) and len(first["loc"]) > 1:
            return f'"{part}" number {int(first["loc"][1]) + 1} is empty or no text'
        number = f"{len(found)}" if isinstance(found, list) else "no list of"
        return f'"{part}" has {number} texts, expected 1 to {MOST_TEXTS}'
    if part not in entry:
        return f'"{part}" is missing'
    return f'"{part}" is empty or no text'


def _read(path: Path) -> list[tuple[str, Any]]:
    """The file's entries in their order, duplicate names included."""
    entries: list[tuple[str, Any]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal entries
        entries = pairs  # the outermost object is closed last
        return dict(pairs)

    text = read_text(path, "text.descriptions: the file", MOST_BYTES)
    try:
        content = json.loads(text, object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        reason = one_line(error)
        raise UserError(f"text.descriptions: {path} is no readable JSON: {reason}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"text.descriptions: {path} holds no object of classes; expected "
            '{"class": {"Short Label": ..., "Fine-grained Descriptions": [3 texts], ...}, ...}'
        )
    return entries
