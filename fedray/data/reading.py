"""Files of the user's, read so that whatever is wrong with one is one sentence."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedray.errors import UserError

_MOST_BYTES = 1 << 28
"""Of a text file, 256 MB: SUN397's split file has 12."""
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_files(paths: Iterable[Path]) -> None:
    """Refuse what is no file: opening a named pipe, say, waits for ever.

    Raises:
        UserError: naming the first, and what it is instead.
    """
    for path in paths:
        check_file(path)


def check_file(path: Path) -> os.stat_result:
    """Refuse what is no file; links are followed.

    Raises:
        UserError: when it is not there or something else.
    """
    try:
        found = path.stat()
    except OSError as error:
        if path.is_symlink():
            raise UserError(
                f"{path} is a link to {os.readlink(path)}, which cannot be followed "
                f"({error.strerror}); mend or remove it"
            ) from None
        raise UserError(f"{path} cannot be read: {error.strerror}; mend or remove it") from None
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise UserError(f"{path} is {_KINDS.get(kind, 'no file')}, expected a file; remove it")
    return found


def read_text(path: Path, remedy: str = "mend or replace it") -> str:
    """The text of a file.

    Args:
        path: the file.
        remedy: what to do when it cannot be read, to end the sentence.

    Raises:
        UserError: when it is no file, cannot be read, is not UTF-8 or larger than such a file is.
    """
    size = check_file(path).st_size
    if size > _MOST_BYTES:
        raise UserError(f"{path} has {size:,} bytes, too many for a list; {remedy}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); {remedy}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {remedy}") from None


def read_json(path: Path, remedy: str = "mend or replace it") -> Any:
    """What a JSON file holds; arguments and errors as of `read_text`.

    Raises:
        UserError: also when it is not valid JSON.
    """
    return parse_json(read_text(path, remedy), str(path), remedy)


def parse_json(text: str | bytes, where: str, remedy: str = "mend or replace it") -> Any:
    """What JSON from a file holds.

    Raises:
        UserError: when it is not valid JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{where} is not valid JSON: it is nested too deep; {remedy}") from None
    except ValueError as error:  # also numbers of too many digits
        raise UserError(f"{where} is not valid JSON: {error}; {remedy}") from None


def walk(root: Path) -> Iterator[Path]:
    """Everything below a folder but folders, through links too; nothing hidden.

    Raises:
        UserError: when a folder cannot be listed, or a link leads back to a folder above it.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be listed: {error.strerror}; mend or remove it")

    above: dict[str, frozenset[tuple[int, int]]] = {str(root): frozenset()}
    for folder, inner, files in os.walk(root, onerror=refuse, followlinks=True):
        status = os.stat(folder)
        seen, this = above.pop(folder), (status.st_dev, status.st_ino)
        if this in seen:
            raise UserError(f"{folder} is a link to a folder that it is in; remove it")
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        above |= {os.path.join(folder, name): seen | {this} for name in inner}
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))
