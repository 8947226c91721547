"""Descriptions of classes, as files, and the texts made of them."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from fedray.config import Frozen
from fedray.errors import UserError, nearest
from fedray.language.templates import TEMPLATES

Style = Literal["fine", "short", "long", "handcrafted", "plain", "ensemble", "name"]

TEMPLATE = "A photo of a {label}: {description}"
HANDCRAFTED = "A photo of a {label}."
PLAIN = "a photo of a {label}"

WITHOUT_DESCRIPTIONS: Mapping[str, tuple[str, ...]] = {
    "handcrafted": (HANDCRAFTED,),
    "plain": (PLAIN,),
    "name": ("{label}",),
    "ensemble": TEMPLATES,
}
"""The styles that need nothing but the class names, with their templates."""

FOLDER = Path(__file__).parent / "descriptions"

_Text = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1)]


class ClassDescriptions(Frozen):
    """What is said about one class; the keys are those of the official FedTSP repository."""

    label: _Text = Field(alias="Short Label")
    """The class in a word or two."""
    short: _Text | None = Field(None, alias="Short Description")
    """One phrase; needed by style short."""
    fine: tuple[_Text, _Text, _Text] = Field(alias="Fine-grained Descriptions")
    """Three sentences, each on another aspect of the look; FedTSP's k = 3."""
    long: _Text | None = Field(None, alias="Long Description")
    """A paragraph; needed by style long."""
    hard_negatives: tuple[_Text, ...] = Field((), alias="Hard Negatives")
    """Classes that are easily taken for this one; nothing reads them by default."""


@dataclass(frozen=True)
class Descriptions:
    """Descriptions of every class of a data set.

    Attributes:
        source: the file they come from.
        classes: for each class name of the data set, in its order, what is said about it.
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
    by_name: dict[str, tuple[str, Any]] = {}
    for name, entry in _read(path):
        same = by_name.setdefault(normalise(name), (name, entry))
        if same[1] is not entry:
            raise UserError(
                f"text.descriptions: {path} describes '{same[0]}' and '{name}', which are the "
                "same name; remove one of them"
            )
    wanted: dict[str, str] = {}
    for name in class_names:
        other = wanted.setdefault(normalise(name), name)
        if other != name:
            raise UserError(
                f"the data set has classes '{other}' and '{name}', which text.descriptions cannot "
                "tell apart; rename one of them in the data set"
            )
    missing = [name for key, name in wanted.items() if key not in by_name]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        described = (name for name, _ in by_name.values())
        hint = nearest(missing[0], described) if len(by_name) <= 20 else ""
        raise UserError(
            f"text.descriptions: {path} has no descriptions of class '{missing[0]}'{more} "
            f"({len(by_name)} classes described, {len(wanted)} wanted); add them to the file or "
            f"choose another one.{hint}"
        )
    classes = {
        name: check_entry(name, by_name[key][1], f"text.descriptions: {path}")
        for key, name in wanted.items()
    }
    return Descriptions(str(path), classes)


def texts(
    descriptions: Descriptions | None,
    class_names: Sequence[str],
    style: Style,
    template: str = TEMPLATE,
) -> list[list[str]]:
    """The texts p_{c,j} that stand for each class, Eq. (3).

    Args:
        descriptions: from `load_descriptions`; needed by styles fine, short and long alone.
        class_names: the classes; underscores become blanks.
        style: fine gives k = 3 texts a class, ensemble one for each of `TEMPLATES`, all others
            one.
        template: how label and description make a text, for fine, short and long.

    Returns:
        For each of C classes, its k texts.

    Raises:
        UserError: when the template has other fields than {label} and {description} or lacks the
            description, or a class lacks what the style needs.

    Paper: FedTSP Eq. (3); hand-crafted texts are those of its ablation (Table 4). plain is
    FedGLCL's prompt (official code), name and ensemble are in its ablation.
    """
    labels = [" ".join(name.replace("_", " ").split()) for name in class_names]
    if style in WITHOUT_DESCRIPTIONS:
        return [
            [form.format(label=label) for form in WITHOUT_DESCRIPTIONS[style]] for label in labels
        ]
    _check_template(template)
    if descriptions is None:
        raise UserError(
            f"text.style={style} needs text.descriptions: a shipped name "
            f"({', '.join(shipped())}) or a JSON file; or set text.style=handcrafted"
        )
    return [
        [
            template.format(label=label, description=said)
            for said in _said(descriptions, name, style)
        ]
        for name, label in zip(class_names, labels, strict=True)
    ]


def normalise(name: str) -> str:
    """A class name without differences of case, underscores and blanks."""
    return " ".join(name.replace("_", " ").casefold().split())


def shipped() -> list[str]:
    """The names of the shipped files."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find_descriptions(name_or_path: str) -> Path:
    """The file of a shipped name or a path.

    Raises:
        UserError: when there is no such file.
    """
    if name_or_path.endswith(".json") or "/" in name_or_path or "\\" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise UserError(f"text.descriptions: the file {path} does not exist")
        return path
    path = FOLDER / f"{name_or_path}.json"
    if not path.is_file():
        raise UserError(
            f"text.descriptions: there are no shipped descriptions '{name_or_path}'; give one of "
            f"these or the path of a JSON file.{nearest(name_or_path, shipped())}"
        )
    return path


def check_entry(name: str, entry: Any, where: str) -> ClassDescriptions:
    """Check what a file or a language model says about one class.

    Args:
        name: the class.
        entry: plain data.
        where: the beginning of an error message: key and file.

    Raises:
        UserError: naming the class, the part that is wrong and what was expected.
    """
    if not isinstance(entry, dict):
        raise UserError(
            f"{where}, class '{name}': found {type(entry).__name__}, expected an object with "
            '"Short Label", "Short Description", "Fine-grained Descriptions", "Long Description"'
        )
    # By alias only: what a file says must be spelled as in the published files.
    try:
        return ClassDescriptions.model_validate(entry, by_alias=True, by_name=False)
    except ValidationError as error:
        raise UserError(f"{where}, class '{name}': {_reason(error, entry)}") from None


def _reason(error: ValidationError, entry: dict[str, Any]) -> str:
    first = error.errors()[0]
    part = str(first["loc"][0])
    keys = [field.alias or "" for field in ClassDescriptions.model_fields.values()]
    if first["type"] == "extra_forbidden":
        return f'unknown key "{part}".{nearest(part, keys)}'
    found = entry.get(part)
    if part == "Fine-grained Descriptions":
        if isinstance(found, list) and len(found) == 3:
            return f'"{part}" number {int(first["loc"][1]) + 1} is empty or no text'
        number = f"{len(found)}" if isinstance(found, list) else "no list of"
        return f'"{part}" has {number} texts, expected 3'
    if part not in entry:
        return f'"{part}" is missing'
    return f'"{part}" is empty or no text'


def _said(descriptions: Descriptions, name: str, style: Style) -> tuple[str, ...]:
    entry = descriptions.classes[name]
    if style == "fine":
        return entry.fine
    said, key = (
        (entry.short, "Short Description") if style == "short" else (entry.long, "Long Description")
    )
    if said is None:
        raise UserError(
            f"text.descriptions: {descriptions.source}, class '{name}': text.style={style} needs "
            f'"{key}", which is missing; add it or set text.style=fine'
        )
    return (said,)


def _check_template(template: str) -> None:
    try:
        fields = {
            field for _, field, _, _ in string.Formatter().parse(template) if field is not None
        }
        template.format(label="", description="")
    except (ValueError, KeyError, IndexError):
        fields = set()
    if "description" not in fields or fields - {"label", "description"}:
        raise UserError(
            f"text.template='{template}' must hold {{description}}, may hold {{label}} and no "
            f"other field, for example '{TEMPLATE}'"
        )


def _read(path: Path) -> list[tuple[str, Any]]:
    """The file's entries, the same name as often as it stands there."""
    entries: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal entries
        entries = pairs  # the outermost object is closed last
        return dict(pairs)

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=keep)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"text.descriptions: {path} is no readable JSON: {reason}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"text.descriptions: {path} holds no object of classes; expected "
            '{"class": {"Short Label": ..., "Fine-grained Descriptions": [3 texts], ...}, ...}'
        )
    return entries
