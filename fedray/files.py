"""Where files live, files that are there whole or not at all, and files made once per node."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedray.errors import RunFailed


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, in one step; a NaN is an error, not "NaN".

    Raises:
        ValueError: when a number is not finite.
    """
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def remove_torn(folder: Path) -> None:
    """Remove what processes that were killed while they replaced a file in `folder` left there."""
    for path in folder.glob(".*.tmp*"):
        owner = re.search(r"\.(\d+)\.tmp", path.name)
        if owner is not None and path.is_file() and not _is_alive(int(owner[1])):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    """Whether this node has a process of that number, though it be somebody else's."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def full_disk_said(folder: Path) -> Iterator[None]:
    """Have a disk without room end what is written to `folder` with one sentence.

    Raises:
        RunFailed: in place of the error that said so.
    """
    try:
        yield
    except Exception as error:
        if not _is_full(error):
            raise
        where = getattr(error, "filename", None) or folder
        raise RunFailed(
            f"{where} cannot be written (No space left on device); make room, then go on with "
            f"--resume {folder}, or begin again if nothing is there yet"
        ) from error


def _is_full(error: Exception) -> bool:
    """Whether a disk or a quota has no room left; safetensors says so in words alone."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "No space left on device" in str(error)


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
