"""Write files atomically, read users' files, lock folders, check names, find fedray's folders."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import re
import secrets
import shlex
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedray.base.errors import RunFailed, UserError, named, one_line, shown
from fedray.base.masking import mask

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

CHECKSUM = "checksum"
"""The last key of a sealed JSON file."""
_TEMPORARY = re.compile(r"\.\d+\.\d+\.tmp\..+")
"""Names of the temporary files of `replace_whole`."""
LOCK = ".lock"
"""The file that a process locks while it writes to the folder of a run or study."""
LOCK_SECONDS = 20
"""Longest wait for another process; the actors of a killed run need a few seconds to end."""
MOST_BYTES = 1 << 30
"""Maximal size of a file that is read whole."""
LONGEST_NAME = 100
"""Maximal number of bytes in an experiment's name; file names consist of the name and a time."""


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Replace `path` in one step by a file; `write` gets a temporary path to write the file to."""
    thread = threading.get_native_id()
    temporary = path.with_name(f".{os.getpid()}.{thread}.tmp.{path.name}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Write `text` to `path` in one step: readers see either the old file or the new one."""

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    replace_whole(path, write)


def write_json(path: Path, data: Any) -> None:
    """Write `data` to `path` as JSON, in one step; raise a ValueError for a NaN."""
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_rows(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table to `path`, in one step."""
    text = StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_atomic(path, text.getvalue())


def remove_torn(folder: Path) -> None:
    """Remove temporary files of killed processes; the caller must hold the folder's lock."""
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk, to survive a crash of the node."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explain_disk_full(folder: Path) -> Iterator[None]:
    """Replace the error of a full disk by a one-line `RunFailed`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RunFailed) or not is_full(error):  # it may be explained already
            raise
        where = getattr(error, "filename", None) or folder
        raise RunFailed(
            f"{where} cannot be written ({named(error)}); free some space, then go on with "
            f"--resume {shlex.quote(str(folder))}, or start again if that folder is still empty"
        ) from error


def is_full(error: BaseException) -> bool:
    """Return True if an error means a full disk or quota; some libraries only say so."""
    numbers = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in numbers or any(
        os.strerror(number) in named(error) for number in numbers
    )


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file of a user or a stranger.

    Args:
        path: the file.
        most: maximal number of bytes; a larger file is refused before it is read.

    Raises:
        OSError: also if the path is a pipe, a socket, a device or a folder, whose reading might
            never end, or if the file is too large.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most:
        found = f"it has {status.st_size:,} bytes, expected at most {most:,}"
        raise OSError(errno.EFBIG, f"{found}; check that this is the right file", str(path))
    return path.read_bytes()


def read_text(path: Path, what: str, most: int) -> str:
    """Read a small file of a user in UTF-8, with or without a byte order mark.

    Args:
        path: the file.
        what: the beginning of an error message.
        most: maximal number of bytes; a larger file is refused.

    Raises:
        UserError: if the file is not a regular file, too large, unreadable or not UTF-8.
    """
    try:
        return read_regular(path, most).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} cannot be read: {error}") from None


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with a checksum of its content as its last key."""
    content = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return {**tree, CHECKSUM: hashlib.sha256(content.encode()).hexdigest()}


def unsealed(tree: Any) -> dict[str, Any]:
    """Return the tree without its checksum; raise ValueError if the checksum does not fit."""
    content = {key: tree[key] for key in tree if key != CHECKSUM} if isinstance(tree, dict) else {}
    if sealed(content) != tree:
        raise ValueError("its content does not fit its checksum; it was damaged or edited")
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError also for repeated keys and deep nesting."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, *, is_sealed: bool = False) -> Any:
    """Return a JSON file's content, without a checksum; raise UserError if it is damaged."""
    try:
        tree = parse_json(read_regular(path))
        return unsealed(tree) if is_sealed else tree
    except FileNotFoundError:
        raise UserError(f"{path} is missing; restore it from a copy") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None


def read_typed(path: Path, kind: Any, what: str, expected: str, most: int = 1 << 28) -> Any:
    """Read a JSON file of a user and validate its content as a type.

    Args:
        path: the file.
        kind: any type that pydantic can validate: list[str], a model, a union.
        what: the beginning of an error message.
        expected: the expected content, as the end of an error message.
        most: maximal number of bytes; a larger file is refused.

    Raises:
        UserError: if the file is unreadable, is not JSON, or holds something else.
    """
    return parse_typed(read_text(path, what, most), kind, f"{what} {path}", expected)


def parse_typed(text: str | bytes, kind: Any, where: str, expected: str) -> Any:
    """Parse JSON text and validate it as a type; `kind` and `expected` as in `read_typed`."""
    from pydantic import TypeAdapter, ValidationError

    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        content = parse_json(text)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(places_of(content, first))
        reason = first["msg"].removeprefix("Value error, ")
        found = f"{reason[0].lower()}{reason[1:]}, found {shown(first['input'])}"
        raise UserError(f"{where}: {place}{': ' if place else ''}{found}; {expected}") from None
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON: {one_line(error)}; {expected}") from None


def places_of(content: Any, error: ErrorDetails) -> Iterator[str]:
    """Yield the keys and positions that lead to a mistake, without pydantic's type names."""
    for part in error["loc"]:
        with suppress(LookupError, TypeError):
            content = content[part]
            yield str(part)
    if error["type"] == "missing":
        yield str(error["loc"][-1])


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice")
    return content


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Create a folder if it is missing, lock it, and remove unfinished files.

    At the end the folder is removed if nothing but the lock is in it. A process that waits for the
    lock notices that its file is gone and opens a new one (guaranteed by filelock). The system
    releases the lock of a killed process.

    Raises:
        UserError: if the folder cannot be written, or another process is running in it.
    """
    from filelock import FileLock

    lock = FileLock(folder / LOCK, timeout=LOCK_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        remove_torn(folder)
    except OSError as error:
        is_busy = isinstance(error, TimeoutError)
        why = "another process is running in it" if is_busy else error.strerror or error
        raise UserError(
            f"the folder {folder} cannot be written ({why}); choose another folder with --out"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            if [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()
        lock.release(force=True)


def check_path(text: str) -> str:
    """Return `text`; raise a ValueError if it is empty or has an unprintable character."""
    if not text.strip() or not text.isprintable():
        raise ValueError(f"expected a path, found {shown(text)}")
    return text


def check_name(text: str) -> str:
    """Return `text`; raise a UserError if it cannot be the name of a file or folder."""
    is_plain = text.isprintable() and text == text.strip() and not set(text) & set("/\\:")
    if not is_plain or not text or text[0] in ".-~" or len(text.encode()) > LONGEST_NAME:
        raise UserError(
            f"{shown(text)} cannot be the name of a file; choose a name of at most {LONGEST_NAME} "
            "printable bytes without / \\ and :, which does not begin with a blank or . - ~"
        )
    return text


def file_name(text: str) -> str:
    """Convert a text to a part of a file name: at most 80 portable characters."""
    return re.sub(r"[^\w.=+,-]+", "_", text, flags=re.ASCII)[:80]


def new_place(below: Path, name: str = "") -> Path:
    """Return the path of a new folder below a folder: a name, the time, and four random digits."""
    place = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    return below / (f"{name}-{place}" if name else place)


def _home(variable: str, usual: str) -> Path:
    path = os.environ.get(variable) or usual
    if "://" in path:
        raise UserError(f"{variable}={mask(path)} is not a folder; name one")
    try:
        return Path(path).expanduser()
    except RuntimeError:  # as in a container with an unknown user
        raise UserError(f"{path}: this user has no home folder; set {variable} or HOME") from None


def results_home() -> Path:
    """Return the absolute path of $FEDRAY_RESULTS, else of ~/fedray_results."""
    return _home("FEDRAY_RESULTS", "~/fedray_results").resolve()


def store_home() -> Path:
    """Return the folder that holds the runs of studies, each in a folder named by a hash."""
    return results_home() / "store"


def cache_folder() -> Path:
    """Return the cache folder, which may be deleted: $FEDRAY_CACHE, else ~/.cache/fedray."""
    return _home("FEDRAY_CACHE", "~/.cache/fedray")
