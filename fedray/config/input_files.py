"""Files that an experiment names: their place and their content, which is part of its identity.

A field of type `InputFile` names one, in the package and in a plug-in's typed parameters alike.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator

from fedray.config.files import COMPONENTS
from fedray.config.schema import Component, Frozen, parameters
from fedray.files import check_path


class NamesFile:
    """Marks a text that names a file or a folder whose content counts.

    Args:
        suffixes: the endings of file names, for a text that may be another name; () for a path.
    """

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def matches(self, value: Any) -> bool:
        """Return True if a value names a file."""
        return isinstance(value, str | Path) and (
            not self.suffixes or Path(value).suffix in self.suffixes
        )


InputFile = Annotated[str, AfterValidator(check_path), NamesFile()]
"""A file or a folder: a relative path is looked up below $FEDRAY_DATA, then here."""


def with_absolute_files(params: Frozen) -> Frozen:
    """Return typed parameters whose input files have absolute paths."""
    found = {name: _absolute(value) for name, value in _marked(params)}
    return params.model_copy(update=found) if found else params


def _absolute(value: str | Path) -> str | Path:
    """Resolve a relative path: below $FEDRAY_DATA if the file is there, else below this folder."""
    path, base = Path(value).expanduser(), os.environ.get("FEDRAY_DATA")
    there = base is not None and (Path(base) / path).exists()
    return type(value)((Path(str(base)) / path if there else path).absolute())


def files_of(params: Frozen, place: str = "") -> dict[str, str]:
    """Return the paths of the files that a resolved experiment names, by dotted key."""
    fields = type(params).model_fields
    paths = {place + (fields[name].alias or name): str(value) for name, value in _marked(params)}
    for name, field in fields.items():
        value, key = getattr(params, name), place + (field.alias or name)
        extra = field.json_schema_extra
        kind = extra.get("kind") if isinstance(extra, dict) else COMPONENTS.get(key)
        if isinstance(value, Component) and kind is not None:
            paths |= files_of(parameters(value, str(kind), key), f"{key}.")
        elif isinstance(value, Frozen):
            paths |= files_of(value, f"{key}.")
    return paths


def _marked(params: Frozen) -> Iterator[tuple[str, str | Path]]:
    """Yield the names and values of the fields that name a file."""
    for name, field in type(params).model_fields.items():
        value, marks = getattr(params, name), [*field.metadata, *_marks_in(field.annotation)]
        mark = next((each for each in marks if isinstance(each, NamesFile)), None)
        if mark is not None and mark.matches(value):
            yield name, value


def _marks_in(annotation: Any) -> Iterator[Any]:
    """Yield the metadata of an annotation and of its parts; a `Path` is a file."""
    if annotation is Path:
        yield NamesFile()
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from _marks_in(part)


def content_of(path: str) -> str:
    """Return the SHA-256 of a file, or of the files in a folder with their names; "" if missing.

    The code that reads a missing file reports it.
    """
    place = Path(path)
    if not place.is_dir():
        return _file_content(place)
    names = sorted(each.relative_to(place) for each in place.rglob("*") if each.is_file())
    seen = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    lines = "".join(f"{name.as_posix()}\0{_file_content(place / name)}\0" for name in seen)
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
