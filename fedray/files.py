"""Where files live, files that are there whole or not at all, and files made once per node."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or a folder's names, on the disk: whole after a node went down."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, in one step; a NaN is an error, not "NaN".

    Raises:
        ValueError: when a number is not finite.
    """
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def results_home() -> Path:
    """$FEDRAY_RESULTS, or ~/fedray_results; absolute."""
    return Path(os.environ.get("FEDRAY_RESULTS") or Path.home() / "fedray_results").resolve()


def cache_folder() -> Path:
    """The folder of everything that can be made again: $FEDRAY_CACHE, else ~/.cache/fedray."""
    chosen = os.environ.get("FEDRAY_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedray"


@contextmanager
def node_lock(path: Path) -> Iterator[None]:
    """Let one process of this node at a time make `path`; its folder is made when missing.

    Raises:
        OSError: when the folder or the lock cannot be made.
    """
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def once_per_node(path: Path, write: Callable[[Path], None]) -> Path:
    """Have a file made by the first process of this node that needs it; the others wait.

    Args:
        path: where it is wanted; if it is there already, nothing happens.
        write: writes it whole to the path that it is given, beside `path`; renamed afterwards, so
            that a torn file is never read.

    Raises:
        OSError: when it cannot be written.
    """
    if path.is_file():
        return path
    with node_lock(path):
        if not path.is_file():
            replace_whole(path, write)
    return path


def replace_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Replace `path` by what `write` writes to the path that it is given; never seen torn.

    Raises:
        OSError: when it cannot be written.
    """
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
