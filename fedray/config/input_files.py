"""Input files of an experiment: resolving their paths and hashing their content.

A field of type `InputFile` in typed parameters, of the package or of a plug-in, declares an input
file. The hash of its content is part of the experiment's identity.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import core_schema

from fedray.config.schema import Component, Frozen
from fedray.storage.files import check_path

WEIGHT_CONFIG = "open_clip_config.json"
"""The configuration that open_clip writes beside a weight file."""


class FilePath(str):
    """The absolute path of an input file or folder."""


class NamesFile:
    """Annotation of a text that is a path, whose content is part of the experiment's identity.

    Validation makes it a `FilePath`: below $FEDRAY_DATA if it exists there, else below the working
    directory.

    Args:
        suffixes: suffixes of file names, if the text may also be a plain name; () if every value is
            a path.
    """

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return pydantic's schema, which makes a path absolute and marks it."""
        return core_schema.no_info_after_validator_function(self._absolute, handler(source))

    def _absolute(self, value: Any) -> Any:
        is_name = (
            self.suffixes and isinstance(value, str) and Path(value).suffix not in self.suffixes
        )
        if not isinstance(value, str) or is_name:
            return value
        path, base = Path(value).expanduser(), os.environ.get("FEDRAY_DATA")
        in_base = base is not None and (Path(base) / path).exists()
        return FilePath((Path(str(base)) / path if in_base else path).absolute())


InputFile = Annotated[str, AfterValidator(check_path), NamesFile()]
"""A file or folder; a relative path is tried below $FEDRAY_DATA, then the working directory."""


def files_of(params: Frozen) -> dict[str, str]:
    """Return the paths of the input files of a resolved experiment, by dotted key.

    The key of a list's item has its position: `data.evolution.phases.0.partition.table`.
    """
    return {key: str(value) for key, value in all_values(params) if isinstance(value, FilePath)}


def all_values(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and plain values of typed data, and its components with their parameters.

    Args:
        value: an experiment, or a part of one.
        key: the dotted key of the part.
    """
    if isinstance(value, Component):
        yield key, value
        value = value.params
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, Frozen):
        fields = type(value).model_fields.items()
        items = [(field.alias or name, getattr(value, name)) for name, field in fields]
    elif isinstance(value, list | tuple | Mapping):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
    else:
        yield key, value
        return
    for name, item in items:
        yield from all_values(item, f"{key}.{name}" if key else str(name))


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
