"""Write files atomically, check names and paths, and find and reserve fedray's folders."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.errors import RunFailed, UserError, named, one_line, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_TEMPORARY = re.compile(r"\.(.+\.)?\d+\.tmp(\..+)?")
"""Names of unfinished files of `replace_whole` and `save_models`."""
LOCK = ".lock"
"""The file that a process locks while it writes to a run's folder."""
LONGEST_FILE_NAME = 255
"""Bytes in the name of a file."""
LONGEST_PATH = 4096
"""Characters in a path on Linux."""
LONGEST_NAME = 100
"""Bytes in the name of an experiment; file names are made of it and a time."""


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: a reader sees the old file or the new one."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    replace_whole(path, write)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON, in one step; a NaN is a ValueError."""
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_rows(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Replace `path` by a CSV table, in one step."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_atomic(path, text.getvalue())


def remove_torn(folder: Path) -> None:
    """Remove unfinished files of processes that were killed; the caller holds the folder's lock."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_temporary(path.name):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Return True if this is the name of an unfinished file."""
    return bool(_TEMPORARY.fullmatch(name))


@contextmanager
def full_disk_said(folder: Path) -> Iterator[None]:
    """Raise a RunFailed with one sentence instead of an error of a full disk."""
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
    """Return True if a disk or a quota is full; safetensors only has the words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in named(error)


def read_text(path: Path, what: str, most: int) -> str:
    """Read a small file of a user.

    Args:
        path: the file.
        what: the beginning of an error message.
        most: bytes; a larger file is refused.

    Raises:
        UserError: if it is no plain file, too large, not readable or not UTF-8.
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


def read_json(path: Path, kind: Any, what: str, expected: str, most: int = 1 << 28) -> Any:
    """Read a JSON file of a user as a type.

    Args:
        path: the file.
        kind: any type that pydantic can validate: list[str], a model, a union.
        what: the beginning of an error message.
        expected: what the file should hold, to end an error message.
        most: bytes; a larger file is refused.

    Raises:
        UserError: if it cannot be read, is not JSON, or holds something else.
    """
    return parse_json(read_text(path, what, most), kind, f"{what} {path}", expected)


def parse_json(text: str | bytes, kind: Any, where: str, expected: str) -> Any:
    """Return what JSON holds as a type; arguments as of `read_json`."""
    from pydantic import TypeAdapter, ValidationError

    try:
        content = json.loads(text, object_pairs_hook=_distinct)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        reason = first["msg"].removeprefix("Value error, ")
        if first["type"] == "json_invalid":  # what `json` lets pass, as half a character
            raise UserError(f"{where} is not valid JSON: {reason}; {expected}") from None
        place = ".".join(places_of(content, first))
        wrong = f"{reason[0].lower()}{reason[1:]}, found {shown(first['input'])}"
        more = f", and {len(others)} more" if others else ""
        raise UserError(
            f"{where}: {place}{': ' if place else ''}{wrong}{more}; {expected}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON: {one_line(error)}; {expected}") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} stands there twice")
    return found


def places_of(content: Any, error: ErrorDetails) -> Iterator[str]:
    """Yield the keys and positions on the way to a mistake, without pydantic's names of types."""
    for part in error["loc"]:
        with suppress(LookupError, TypeError):
            content = content[part]
            yield str(part)
    if error["type"] == "missing":
        yield str(error["loc"][-1])


def check_path(text: str) -> str:
    """Return `text`; raise a ValueError if it is empty, unprintable or too long for a path."""
    if not text.strip():
        raise ValueError("a path is expected, found an empty text")
    if not text.isprintable():
        raise ValueError(f"the path {shown(text)} has a character that cannot be printed")
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if longest > LONGEST_FILE_NAME or len(text) > LONGEST_PATH:
        raise ValueError(
            f"the path {shown(text)} is too long; a part may have {LONGEST_FILE_NAME} bytes, "
            f"all of it {LONGEST_PATH}"
        )
    return text


def check_name(text: str) -> str:
    """Return `text`; raise a UserError if it cannot be the name of a file or folder."""
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
    """Return a text as part of a file's name: at most 80 portable characters."""
    return re.sub(r"[^\w.=+,-]+", "_", text, flags=re.ASCII)[:80]


def make_folder(folder: Path) -> None:
    """Make a folder if it is missing; raise a UserError if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None


def cannot_write(folder: Path, error: OSError) -> UserError:
    """Return the error for a folder that cannot be written."""
    return UserError(
        f"the folder {folder} cannot be written ({error.strerror or error}); make room or rights "
        "for it, or choose another with --out"
    )


def results_uri() -> str | None:
    """Return $FEDRAY_RESULTS if it is a URI, s3://bucket/results, to which results are copied."""
    chosen = os.environ.get("FEDRAY_RESULTS", "")
    return chosen if "://" in chosen else None


def results_home() -> Path:
    """Return $FEDRAY_RESULTS if it is a folder, else ~/fedray_results; absolute."""
    chosen = None if results_uri() else os.environ.get("FEDRAY_RESULTS")
    return Path(chosen or Path.home() / "fedray_results").resolve()


def tables_home() -> Path:
    """Return the folder of tables."""
    return results_home() / "tables"


def store_home() -> Path:
    """Return the folder of studies' runs, each in a folder named by its content."""
    return results_home() / "store"


def cache_folder() -> Path:
    """Return the folder of files that can be made again: $FEDRAY_CACHE, else ~/.cache/fedray."""
    return Path(os.environ.get("FEDRAY_CACHE") or "~/.cache/fedray").expanduser()


@contextmanager
def node_lock(path: Path) -> Iterator[None]:
    """Let one process of this node at a time make `path`; make its folder if it is missing."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def stamp() -> str:
    """Return the name of an invocation's folder: the time, to the second."""
    return datetime.now().strftime("%Y%m%d-%H%M%S")


def reserve(place: Path) -> Path:
    """Make a new folder: `place`, or the first of place-2, place-3, ... that does not exist.

    Two commands that begin in the same second get one each.
    """
    folder, number = place, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = place.with_name(f"{place.name}-{number}")
        except OSError as error:
            raise cannot_write(folder, error) from None


@contextmanager
def unused_removed(reserved: Path | None) -> Iterator[None]:
    """Remove a reserved folder, if there is one, after an error that left it empty."""
    try:
        yield
    except BaseException:
        if reserved is not None:
            _remove_empty(reserved)
        raise


def _remove_empty(folder: Path) -> None:
    """Remove a folder that holds at most a lock, and its empty parents below the results."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
        for each in (folder, *folder.parents):
            if results_home() not in each.parents:
                return
            each.rmdir()  # which ends this where it is not empty


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Replace `path` in one step by the file that `write` writes to the path it is given."""
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or a folder's names, to the disk, so that they survive a crash of the node."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
