"""Input files of an experiment: resolving their paths and hashing their content.

A field of type `InputFile` in typed parameters, of the package or of a plug-in, declares an input
file. The hash of its content is part of the experiment's identity.
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
    """Annotation of a text that is a path, whose content is part of the experiment's identity.

    Args:
        suffixes: suffixes of file names, if the text may also be a plain name; () if every value is
            a path.
    """

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def matches(self, value: Any) -> bool:
        """Return True if a value is a path."""
        return isinstance(value, str | Path) and (
            not self.suffixes or Path(value).suffix in self.suffixes
        )


InputFile = Annotated[str, AfterValidator(check_path), NamesFile()]
"""A file or folder; a relative path is tried below $FEDRAY_DATA, then the working directory."""


def with_absolute_files(params: Frozen) -> Frozen:
    """Return typed parameters with absolute paths of input files."""
    paths = {name: _absolute(value) for name, value in _input_files(params)}
    return params.model_copy(update=paths) if paths else params


def _absolute(value: str | Path) -> str | Path:
    """Resolve a path: below $FEDRAY_DATA if it exists there, else below the working directory."""
    path, base = Path(value).expanduser(), os.environ.get("FEDRAY_DATA")
    in_base = base is not None and (Path(base) / path).exists()
    return type(value)((Path(str(base)) / path if in_base else path).absolute())


def files_of(params: Frozen, place: str = "") -> dict[str, str]:
    """Return the paths of the input files of a resolved experiment, by dotted key."""
    fields = type(params).model_fields
    files = _input_files(params)
    paths = {place + (fields[name].alias or name): str(value) for name, value in files}
    for name, field in fields.items():
        value, key = getattr(params, name), place + (field.alias or name)
        extra = field.json_schema_extra
        kind = extra.get("kind") if isinstance(extra, dict) else COMPONENTS.get(key)
        if isinstance(value, Component) and kind is not None:
            paths |= files_of(parameters(value, str(kind), key), f"{key}.")
        elif isinstance(value, Frozen):
            paths |= files_of(value, f"{key}.")
    return paths


def _input_files(params: Frozen) -> Iterator[tuple[str, str | Path]]:
    """Yield the names and values of the fields that hold a path of an input file."""
    for name, field in type(params).model_fields.items():
        value, marks = getattr(params, name), [*field.metadata, *_marks_in(field.annotation)]
        mark = next((mark for mark in marks if isinstance(mark, NamesFile)), None)
        if mark is not None and mark.matches(value):
            yield name, value


def _marks_in(annotation: Any) -> Iterator[Any]:
    """Yield the metadata of an annotation and of its parts; the type `Path` marks a file."""
    if annotation is Path:
        yield NamesFile()
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from _marks_in(part)


def content_of(path: str) -> str:
    """Return the SHA-256 of a file, or of the files in a folder with their names; "" if missing.

    A missing file is reported later, by the code that reads it.
    """
    place = Path(path)
    if not place.is_dir():
        return _file_content(place)
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
