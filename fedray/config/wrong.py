"""What is wrong with plain data, in one sentence: the key, what is expected there, what was found.

participation: expected a number above 0 and at most 1, found 5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedray.config.synonyms import CHOOSES, key_for
from fedray.errors import nearest, shown

HUGE = 2**53
"""A bound from here on is that of what a number is stored in, and not said."""
SECTION = "keys of its own"
PLAIN: Mapping[Any, str] = {bool: "true or false", str: "a text"}
NUMBERS: Mapping[Any, str] = {int: "a whole number", float: "a number"}


def sentence(model: type[BaseModel], first: ErrorDetails, prefix: str) -> str:
    """What is wrong with data that should be a `model`.

    Args:
        model: the typed model.
        first: the first thing that is wrong with it, as pydantic says it.
        prefix: the dotted place of the data in the experiment.
    """
    places, expected = _followed(model, (), first["loc"])
    key = ".".join([prefix, *places] if prefix else places)
    if first["type"] == "extra_forbidden":
        return _unknown(key, _owner(model, places), model)
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        return f"{key}: {message}" if key else message
    if first["type"] == "missing":
        return f"{key} is missing; expected {expected}"
    found = first["input"]
    if expected == SECTION:
        meant = CHOOSES.get(key)
        cure = f"; write {meant}={found if isinstance(found, str) else '...'}" if meant else ""
        return f"{key or 'it'} has {SECTION}, found {_as_written(found)}{cure}"
    if first["type"] == "finite_number":
        expected = expected.replace("a number", "a finite number")
    return f"{key}: expected {expected}, found {_as_written(found)}"


def _as_written(value: Any) -> str:
    """A value as YAML has it, where Python writes it otherwise."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shown(value)


def _owner(model: type[BaseModel], places: Sequence[str]) -> type[BaseModel]:
    """The innermost model that a place lies in."""
    for part in places[:-1]:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model


def _followed(
    annotation: Any, metadata: Sequence[Any], parts: Sequence[int | str]
) -> tuple[list[str], str]:
    """The keys on the way to a place, and what is expected there.

    Pydantic names a member of a union after its key; that name is left out.
    """
    members = _members(annotation)
    rest = parts[1:] if len(members) > 1 else parts
    if not rest:
        return [], _expected(annotation, metadata)
    places, expected = _followed(*_inside(members, rest[0]), rest[1:])
    return [str(rest[0]), *places], expected


def _inside(members: Sequence[Any], part: int | str) -> tuple[Any, Sequence[Any]]:
    """The type of a model's field, or of a list's or mapping's item, with its bounds."""
    for member in members:
        fields = member.model_fields if hasattr(member, "model_fields") else {}
        for name, field in fields.items():
            if part in (name, field.alias):
                return field.annotation, field.metadata
    return next((each for each in map(_item, members) if each is not None), Any), ()


def _members(annotation: Any) -> list[Any]:
    """The types that an annotation allows, without null."""
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if get_origin(bare) not in (Union, UnionType):
        return [annotation]
    return [each for each in get_args(bare) if each is not NoneType]


def _item(annotation: Any) -> Any:
    """The type of a list's or a mapping's items; None of what has none."""
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    kinds = (Literal, Union, UnionType)
    inner = () if get_origin(bare) in kinds else get_args(bare)
    found = [each for each in inner if each is not Ellipsis]
    return found[-1] if found else None


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    """Whether a type has keys of its own alone, unlike what is chosen by name."""
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return is_model and annotation.model_config.get("extra") == "forbid"


def _expected(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What fits a type, in words."""
    origin = get_origin(annotation)
    if origin is Annotated:
        bare, *more = get_args(annotation)
        return _expected(bare, [*metadata, *more])
    if origin in (Union, UnionType):
        said = " or ".join(_expected(each, metadata) for each in _members(annotation))
        return f"{said}, or null" if NoneType in get_args(annotation) else said
    if origin is Literal:
        *others, last = map(repr, get_args(annotation))
        return f"{', '.join(others)} or {last}" if others else last
    if annotation in NUMBERS:
        return f"{NUMBERS[annotation]}{_range(dict(_bounds(metadata)))}"
    if annotation in PLAIN:
        sized = annotation is str
        return PLAIN[annotation] + (_size(dict(_bounds(metadata)), "characters") if sized else "")
    kind = origin or annotation
    if annotation is Any or not isinstance(kind, type):
        return "another value"
    if issubclass(kind, BaseModel):
        return SECTION if _is_section(kind) else "a name"
    if issubclass(kind, Mapping):
        return "a mapping"
    return f"a list{_size(dict(_bounds(metadata)), 'items')}"


def _bounds(metadata: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Bounds of a number, or of how long something is, by pydantic's names for them."""
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        for name in ("gt", "ge", "lt", "le", "min_length", "max_length"):
            if (bound := getattr(each, name, None)) is not None:
                yield name, bound


def _range(bounds: Mapping[str, Any]) -> str:
    """A number's bounds in words, with a space before; nothing where there are none."""
    ends = {name: _number(bound) for name, bound in bounds.items() if abs(bound) < HUGE}
    if "ge" in ends and "le" in ends:
        return f" from {ends['ge']} to {ends['le']}"
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
    said = [f"{word} {ends[name]}" for name, word in words.items() if name in ends]
    return f" {' and '.join(said)}" if said else ""


def _number(bound: float) -> str:
    """A bound without a fraction of nothing."""
    return str(int(bound)) if bound == int(bound) else str(bound)


def _size(bounds: Mapping[str, Any], of: str) -> str:
    """How long something is, in words, with a space before."""
    words = {"min_length": "at least", "max_length": "at most"}
    said = [f"{word} {bounds[name]}" for name, word in words.items() if name in bounds]
    return f" of {' and '.join(said)} {of}" if said else ""


def _unknown(key: str, owner: type[BaseModel], root: type[BaseModel]) -> str:
    """What is said of an unknown key: what others call so, what lies elsewhere, what is near.

    Args:
        key: dotted, as it was given.
        owner: what has no such key.
        root: the whole that it lies in.
    """
    *above, name = key.split(".")
    valid = [field.alias or field_name for field_name, field in owner.model_fields.items()]
    if not valid and key_for(name) in (None, key):
        where = ".".join(above)
        return f"unknown key '{name}' in {where}, which has no keys of its own; leave it out"
    meant = key_for(name) or _elsewhere(name, root)
    meant = meant.removeprefix(f"{'.'.join(above)}.") if meant and meant != key else None
    near = f" Did you mean '{meant}'?" if meant else nearest(name, valid)
    return f"unknown key '{name}' in {'.'.join(above) or 'the experiment'}.{near}"


def _elsewhere(name: str, root: type[BaseModel]) -> str | None:
    """The dotted key of the only section that has a key of this name."""
    found = [
        f"{section}.{name}"
        for section, field in root.model_fields.items()
        if _is_section(field.annotation) and name in field.annotation.model_fields
    ]
    return found[0] if len(found) == 1 else None
