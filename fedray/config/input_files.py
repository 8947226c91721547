"""Input files of an experiment: resolving their paths and hashing their content.

A field of type `InputFile` in typed parameters, of the package or of a plug-in, declares an input
file. The hash of its content is part of the experiment's identity.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import AfterValidator
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from fedray.config.schema import Component, Frozen
from fedray.files import check_path

WEIGHT_CONFIG = "open_clip_config.json"
"""The configuration that open_clip writes beside a weight file."""


class NamesFile:
    """Annotation of a text that is a path, whose content is part of the experiment's identity.

    Args:
        suffixes: suffixes of file names, if the text may also be a plain name; () if every value is
            a path.
    """

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return pydantic's schema, which makes paths absolute."""
        return core_schema.no_info_after_validator_function(self._absolute, handler(source))

    def matches(self, value: Any) -> bool:
        """Return True if a value is a path."""
        return isinstance(value, str) and (not self.suffixes or Path(value).suffix in self.suffixes)

    def _absolute(self, value: Any) -> Any:
        if not self.matches(value):
            return value
        path, base = Path(value).expanduser(), os.environ.get("FEDRAY_DATA")
        in_base = base is not None and (Path(base) / path).exists()
        return str((Path(str(base)) / path if in_base else path).absolute())


InputFile = Annotated[str, AfterValidator(check_path), NamesFile()]
"""A file or folder; a relative path is tried below $FEDRAY_DATA, then the working directory."""


def files_of(params: Frozen) -> dict[str, str]:
    """Return the paths of the input files of a resolved experiment, by dotted key.

    The key of a list's item has its position: `data.evolution.phases.0.partition.table`.
    """
    return {
        value.key: str(value.value)
        for value in all_values(params)
        if _is_file(value.value, value.annotation)
    }


class KeyValue(NamedTuple):
    """A value of a resolved experiment.

    Attributes:
        key: its dotted key.
        value: a plain value, or a component, whose parameters are further values.
        annotation: its type, with marks such as `NamesFile`.
    """

    key: str
    value: Any
    annotation: Any


def all_values(params: Frozen, place: str = "") -> Iterator[KeyValue]:
    """Yield all values of typed data: also of sections, of items, and of components' parameters."""
    for name, field in type(params).model_fields.items():
        key = place + (field.alias or name)
        yield from _values_in(getattr(params, name), _whole(field), key)


def _values_in(value: Any, annotation: Any, key: str) -> Iterator[KeyValue]:
    items = _items(value, annotation)
    if isinstance(value, Frozen):
        yield from all_values(value, f"{key}.")
    elif not items:
        yield KeyValue(key, value, annotation)
    if isinstance(value, Component):
        yield from all_values(value.params, f"{key}.")
    for name, item, inner in items:
        yield from _values_in(item, inner, f"{key}.{name}")


def _whole(field: FieldInfo) -> Any:
    """Return the annotation of a field with the marks that pydantic keeps beside it."""
    marks = [mark for mark in field.metadata if isinstance(mark, NamesFile)]
    return Annotated[field.annotation, *marks] if marks else field.annotation


def _items(value: Any, annotation: Any) -> list[tuple[Any, Any, Any]]:
    """Return key, value and annotation of each item of a list, tuple or mapping."""
    if not isinstance(value, list | tuple | Mapping):
        return []
    for alternative in _alternatives(annotation):
        origin, kinds = get_origin(alternative), get_args(alternative)
        if not isinstance(origin, type) or not isinstance(value, origin):
            continue
        if isinstance(value, Mapping):
            return [(key, item, kinds[1]) for key, item in value.items()]
        if isinstance(value, list | tuple):
            kinds = kinds[:1] * len(value) if kinds[1:] in ((), (...,)) else kinds
            return list(zip(range(len(value)), value, kinds, strict=True))
    return []


def _is_file(value: Any, annotation: Any) -> bool:
    """Return True if an annotation marks a value as the path of an input file."""
    return any(
        mark.matches(value)
        for alternative in _alternatives(annotation)
        for mark in getattr(alternative, "__metadata__", ())
        if isinstance(mark, NamesFile)
    )


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the annotation, with its metadata and without."""
    yield annotation
    if get_origin(annotation) is Annotated:
        yield from _alternatives(annotation.__origin__)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _alternatives(member)


def content_of(path: str) -> str:
    """Return the SHA-256 of a file, or of the files in a folder with their names; "" if missing.

    A configuration that is read with a weight file counts, too. A missing file is reported later,
    by the code that reads it.
    """
    place = Path(path)
    if not place.is_dir():
        content, beside = _file_content(place), _file_content(place.parent / WEIGHT_CONFIG)
        both = hashlib.sha256(f"{content}\0{beside}".encode()).hexdigest()
        return both if content and beside else content
    names = sorted(file.relative_to(place) for file in place.rglob("*") if file.is_file())
    visible = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    lines = "".join(f"{name.as_posix()}\0{_file_content(place / name)}\0" for name in visible)
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_content(path: Path) -> str:
    try:
        status = path.stat()
        return _sha256(path, status.st_size, status.st_mtime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=1024)
def _sha256(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
