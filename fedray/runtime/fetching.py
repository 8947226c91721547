"""What a folder lacks, fetched from its copy at a URI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fedray.runtime.remote import by_entry, file_system, files_at, is_being_written, reading, uri_of
from fedray.runtime.whose import BEGUN, CONFIG, is_begun

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

META = "meta.json"
"""What makes a checkpoint count: it is copied last."""
TRIES = 5
"""How often what changes meanwhile is read anew."""
PART = 2**24
"""Bytes of a file that are held at once."""


def fetch_missing(folder: Path) -> None:
    """Fetch from $FEDRAY_RESULTS, where that is a URI, what a folder lacks.

    What holds a run, a sweep or a table here stays as it is. Any other folder is filled: each file
    and folder in it that is not here is fetched whole.

    Raises:
        UserError: when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None or is_begun(folder):
        return
    files, root = file_system(uri)
    with reading(uri):
        for _ in range(TRIES):  # who copies there may replace a checkpoint meanwhile
            with suppress(FileNotFoundError):
                _fetch(files, _whole(files_at(files, root)), folder)
                return
        raise OSError("it changed again and again while it was read")


def _whole(names: Mapping[str, str]) -> dict[str, str]:
    """The files without those of checkpoints whose meta.json never came, and those half-written."""
    rounds = {n: PurePosixPath(n).parent for n in names if "checkpoints/round_" in f"/{n}"}
    return {
        name: names[name]
        for name in sorted(names)
        if (name not in rounds or str(rounds[name] / META) in names) and not is_being_written(name)
    }


def _fetch(files: FileSystem, names: Mapping[str, str], place: Path) -> None:
    """Fetch what is not at a place: as a whole, or, of a folder in which nothing began, by entry.

    Args:
        files: where from.
        names: of the files below the place, with their paths there; of a file, "".
        place: where to.
    """
    if not place.exists():
        _fetch_whole(files, names, place)
    elif place.is_dir() and not is_begun(place):
        entries = by_entry(names)
        for entry in sorted(entries, key=lambda entry: (entry in BEGUN, entry == CONFIG, entry)):
            _fetch(files, entries[entry], place / entry)


def _fetch_whole(files: FileSystem, names: Mapping[str, str], place: Path) -> None:
    begun = place.with_name(f".{os.getpid()}.tmp.{place.name}")
    try:
        for name, path in names.items():
            target = begun / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with files.open_input_stream(path) as stream, target.open("wb") as file:
                shutil.copyfileobj(stream, file, PART)
        if begun.exists():
            _rename(begun, place)
    finally:
        if begun.is_dir():
            shutil.rmtree(begun, ignore_errors=True)
        begun.unlink(missing_ok=True)


def _rename(begun: Path, place: Path) -> None:
    """Give what was fetched its name, unless another process was faster."""
    try:
        os.rename(begun, place)
    except OSError:
        if not place.exists():
            raise
