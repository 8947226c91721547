"""Where files live, files that are there whole or not at all, and files made once per node."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from fedray.errors import RunFailed, UserError, named, shown

_TEMPORARY = re.compile(r"\.(.+\.)?\d+\.tmp(\..+)?")
"""What `write_atomic`, `replace_whole` and `save_models` call what they have begun."""
LOCK = ".lock"
"""What a process holds as long as a folder is its own."""
LONGEST_FILE_NAME = 255
"""Bytes in the name of a file, on the file systems that we know."""
LONGEST_PATH = 4096
"""Characters in a path, as Linux has it."""
LONGEST_NAME = 100
"""Bytes in the name of an experiment; file names are made of it and a time."""


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader sees the old file or the new one.

    Raises:
        OSError: when it cannot be written; nothing is left behind.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    replace_whole(path, write)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, in one step; a NaN is an error, not "NaN".

    Raises:
        ValueError: when a number is not finite.
    """
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_rows(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Replace `path` by a table for other programs, in one step.

    Raises:
        OSError: when it cannot be written.
    """
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_atomic(path, text.getvalue())


def remove_torn(folder: Path) -> None:
    """Remove what processes that were killed while they wrote in `folder` left half-written there.

    The caller keeps others out of the folder meanwhile.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_temporary(path.name):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder with all it holds, or a link, but not what the link leads to.

    Raises:
        OSError: if it is a file and cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Return True if this is the name of something that is still being written."""
    return bool(_TEMPORARY.fullmatch(name))


@contextmanager
def full_disk_said(folder: Path) -> Iterator[None]:
    """Have a disk without room end what is written to `folder` with one sentence.

    Raises:
        RunFailed: in place of the error that said so.
    """
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        where = getattr(error, "filename", None) or folder
        raise RunFailed(
            f"{where} cannot be written (No space left on device); make room, then go on with "
            f"--resume {folder}, or begin again if nothing is there yet"
        ) from error


def is_full(error: BaseException) -> bool:
    """Whether a disk or a quota has no room left; safetensors says so in words alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in named(error)


def read_text(path: Path, what: str, most: int) -> str:
    """Read a small file that a user gives.

    Args:
        path: the file.
        what: what it is, the beginning of an error message.
        most: bytes; a larger file cannot be meant.

    Raises:
        UserError: when it is no plain file, too large, not readable or not UTF-8.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{what} {path} is no plain file")
        if status.st_size > most:
            raise UserError(
                f"{what} {path} has {status.st_size} bytes, expected at most {most}; it is not "
                "what it should be"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {path} cannot be read: {error}") from None


def check_path(text: str) -> str:
    """Refuse what can be no path: nothing, a control character, a part that no disk takes.

    Raises:
        UserError: with what is wrong about it.
    """
    if not text.strip():
        raise UserError("a path is expected, found an empty text")
    if not text.isprintable():
        raise UserError(f"the path {shown(text)} has a character that cannot be printed")
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if longest > LONGEST_FILE_NAME or len(text) > LONGEST_PATH:
        raise UserError(
            f"the path {shown(text)} is too long; a part may have {LONGEST_FILE_NAME} bytes, "
            f"all of it {LONGEST_PATH}"
        )
    return text


def check_name(text: str) -> str:
    """Refuse a name that cannot be part of a file's name: it must stay in its folder.

    Raises:
        UserError: with what is wrong about it.
    """
    if not text.isprintable() or text != text.strip() or not text:
        wrong = "is empty, has a blank at its end or a character that cannot be printed"
    elif set(text) & set("/\\:"):
        wrong = "has a character that separates folders"
    elif text[0] in ".-~":
        wrong = f"begins with {text[0]!r}"
    elif len(text.encode()) > LONGEST_NAME:
        wrong = f"is longer than {LONGEST_NAME} bytes"
    else:
        return text
    raise UserError(f"{shown(text)} {wrong}, but files are named after it; choose another name")


def file_name(text: str) -> str:
    """A text as part of a file's name: short, and of characters that every system takes."""
    return re.sub(r"[^\w.=+,-]+", "_", text, flags=re.ASCII)[:80]


def make_folder(folder: Path) -> None:
    """Make a folder where it is missing.

    Raises:
        UserError: when that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None


def cannot_write(folder: Path, error: OSError) -> UserError:
    """Says that a folder cannot be written, and why."""
    return UserError(
        f"the folder {folder} cannot be written ({error.strerror or error}); make room or rights "
        "for it, or choose another with --out"
    )


def results_uri() -> str | None:
    """$FEDRAY_RESULTS where it is a URI: s3://bucket/results; then results are copied there."""
    chosen = os.environ.get("FEDRAY_RESULTS", "")
    return chosen if "://" in chosen else None


def results_home() -> Path:
    """$FEDRAY_RESULTS where it is a folder, else ~/fedray_results; absolute."""
    chosen = None if results_uri() else os.environ.get("FEDRAY_RESULTS")
    return Path(chosen or Path.home() / "fedray_results").resolve()


def tables_home() -> Path:
    """Where tables are."""
    return results_home() / "tables"


def tables_runs() -> Path:
    """Where their runs are, each in a folder named after what determines its numbers."""
    return tables_home() / "runs"


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


def stamp() -> str:
    """What the folder of an invocation is called: the time, to the second."""
    return datetime.now().strftime("%Y%m%d-%H%M%S")


def reserve(place: Path) -> Path:
    """Make a folder for one alone: `place`, or the next of place-2, place-3, ... that is free.

    Two commands that begin in the same second get one each.

    Raises:
        UserError: when it cannot be made.
    """
    for number in count(1):
        found = place if number == 1 else place.with_name(f"{place.name}-{number}")
        try:
            found.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise cannot_write(found, error) from None
        return found
    raise AssertionError("numbers do not end")


@contextmanager
def unused_removed(reserved: Path | None) -> Iterator[None]:
    """Remove a folder that was reserved, where what ends in an error has written nothing to it.

    Args:
        reserved: the folder; None where none was.
    """
    try:
        yield
    except BaseException:
        if reserved is not None:
            _remove_empty(reserved)
        raise


def _remove_empty(folder: Path) -> None:
    """Remove a folder with nothing but a lock in it, and what that empties below the results."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
        for each in (folder, *folder.parents):
            if results_home() not in each.parents:
                return
            each.rmdir()  # which ends this where it is not empty


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
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


def sync(path: Path) -> None:
    """Have a file, or a folder's names, on the disk: whole after a node went down."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
