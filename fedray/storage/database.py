"""A consistent snapshot of numbered trees of tensors, in one SQLite file and further files.

    FOLDER/states.sqlite    facts about the snapshot, small trees, the file names of large trees
    FOLDER/states/          large trees, one safetensors file each

Changes are written in one transaction: after a kill or on a full disk, the previous snapshot stays
complete. SQLite uses a rollback journal, because a write-ahead log does not work on network file
systems. Each row has a checksum over its number, file name and content; the facts have a separate
one.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from fedray.errors import UserError
from fedray.storage.checked_json import checksum, parse_json, sealed, unsealed
from fedray.storage.entries import check_state_file
from fedray.storage.files import is_at_size_limit, read_regular, sync
from fedray.storage.tensors import (
    DAMAGE,
    LARGE,
    Place,
    damaged,
    file_checksum,
    read_tree,
    tree_bytes,
    tree_from_bytes,
    tree_to_bytes,
    write_tree,
)
from fedray.trees import StateTree

FORMAT = 5
DATABASE = "states.sqlite"
WAIT_SECONDS = 600.0
"""How long a process waits while another one reads or writes the file."""
_SCHEMA = {
    "facts": "CREATE TABLE facts (json TEXT NOT NULL)",
    "trees": "CREATE TABLE trees (number INTEGER PRIMARY KEY, file TEXT, blob INTEGER, "
    "checksum TEXT NOT NULL)",
    "blobs": "CREATE TABLE blobs (id INTEGER PRIMARY KEY, content BLOB NOT NULL)",
}
_TREES = "SELECT number, file, content, checksum FROM trees LEFT JOIN blobs ON blob = id"
_PAGE_BYTES = 16384
"""Takes a quarter less time than SQLite's default, for 1,000 states of 38 kB."""
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names another file; SQLite might delete that file."""
Entry: TypeAlias = StateTree | Place
"""A tree of tensors, or the place of a tree that has been written."""


class StateDatabase:
    """A consistent snapshot of numbered trees.

    Args:
        folder: the folder of the SQLite file; it need not exist.
        lasting: whether `save` returns only after the data is synced to disk.

    Attributes:
        path: the SQLite file.
        files: the folder of the large trees.
        places: for each number, the place of its tree, or None for a tree in the SQLite file.
    """

    def __init__(self, folder: Path, *, lasting: bool = True) -> None:
        self._lasting = lasting
        self._folder = folder
        self.path = folder / DATABASE
        self.files = folder / "states"
        self.places: dict[int, Place | None] = {}
        self._token, self._names = secrets.token_hex(4), itertools.count()
        self._open: sqlite3.Connection | None = None

    def new_name(self) -> str:
        """Return a file name, without suffix, that no tree has ever had."""
        return f"{self._token}-{next(self._names)}"

    # --- writing ----------------------------------------------------------------------------------

    def save(
        self, facts: Mapping[str, Any], entries: Iterable[tuple[int, Entry]]
    ) -> dict[int, Place | None]:
        """Replace the facts and some trees in one transaction, then remove replaced files.

        May run in a thread while others read; the reader adds the result to `places`.

        Args:
            facts: JSON values; read after the entries.
            entries: the numbers with their new trees.

        Returns:
            The new places of these numbers.

        Raises:
            OSError, SafetensorError: if writing fails; the previous snapshot is then unchanged.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(_connect(self.path, "rwc")) as file:
                _begin(file, "EXTRA" if self._lasting else "OFF")
                new: dict[int, Place | None] = {}
                replaced: list[tuple[int | None]] = []
                for number, entry in entries:
                    replaced += file.execute("SELECT blob FROM trees WHERE number = ?", [number])
                    new[number] = self._put(file, number, entry)
                # last, so that new blobs use pages that the previous transaction freed: these
                # need no copy in the journal
                file.executemany("DELETE FROM blobs WHERE id = ?", replaced)
                count = len(self.places) + sum(number not in self.places for number in new)
                sealed_facts = sealed({**facts, "trees": count})
                file.execute("DELETE FROM facts")
                file.execute(
                    "INSERT INTO facts VALUES (?)", [json.dumps(sealed_facts, allow_nan=False)]
                )
                if self._lasting and self.files.is_dir():
                    sync(self.files)
                file.execute("COMMIT")
        except sqlite3.Error as error:
            code = _errno_of(error, self.path)
            raise OSError(code, f"{os.strerror(code)} ({error})", str(self.path)) from error
        for number, place in new.items():
            old = self.places.get(number)
            if old is not None and old != place:
                self.remove(old)
        return new

    def _put(self, file: sqlite3.Connection, number: int, entry: Entry) -> Place | None:
        """Replace one tree; a small tree in a file is copied into the database."""
        content, place = b"", None
        if isinstance(entry, Place):
            path = self.files / entry.file
            if path.stat().st_size < LARGE:
                content = read_regular(path)
            else:
                place = entry
        elif tree_bytes(entry) < LARGE:
            content = tree_to_bytes(entry)
        else:
            place = write_tree(self.files / f"{self.new_name()}.safetensors", entry)
        if place is None:
            digest = hashlib.sha256(content).hexdigest()
            blob = file.execute("INSERT INTO blobs (content) VALUES (?)", [content]).lastrowid
            row = [number, None, blob, _row_checksum(number, None, digest)]
        else:
            if self._lasting:
                sync(self.files / place.file)
            row = [number, place.file, None, _row_checksum(number, *place)]
        file.execute("INSERT OR REPLACE INTO trees VALUES (?, ?, ?, ?)", row)
        return place

    def remove(self, place: Place) -> None:
        """Delete a file that is no longer referenced; `tidy` retries if this fails."""
        with suppress(OSError):
            (self.files / place.file).unlink(missing_ok=True)

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> dict[str, Any] | None:
        """Return the facts after verifying all data; None if nothing has been saved.

        Raises:
            UserError: if a file is damaged, missing or of another format.
        """
        self.close()
        facts = self.facts()
        if facts is None:
            return None
        with _reporting_damage(self.path):
            rows = self._rows(f"{_TREES} ORDER BY number")
            places = {number: place for number, place, _ in rows}
            if len(places) != facts["trees"]:
                raise ValueError("trees are missing")
            (state,) = self._file().execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise ValueError(" ".join(state.split()))
        self.places = places
        return facts

    def facts(self) -> dict[str, Any] | None:
        """Return the facts without verifying the trees; None if nothing has been saved."""
        if not self.path.exists():
            for old_file in (
                *self._folder.glob("meta.json"),
                *self._folder.glob("round_*/meta.json"),
            ):
                raise _another_version(old_file)
            return None
        with _reporting_damage(self.path):
            _refuse_super_journal(self.path)
            _refuse_other_mode(self.path)
            ((version,),) = self._file().execute("PRAGMA user_version").fetchall()
            schema = dict(self._file().execute("SELECT name, sql FROM sqlite_master").fetchall())
            if not schema and not version:
                return None  # killed before the first commit
            if version != FORMAT:
                raise _another_version(self.path)
            if schema != _SCHEMA:
                raise ValueError("its tables are not those of fedray")
            ((page_bytes,),) = self._file().execute("PRAGMA page_size").fetchall()
            if self.path.stat().st_size % page_bytes:
                raise ValueError("it is truncated")
            ((text,),) = self._file().execute("SELECT json FROM facts").fetchall()
            return unsealed(parse_json(text))

    def read(self, number: int) -> dict[str, Any]:
        """Return the tree of a number like `find`, but treat a missing tree as damage."""
        tree = self.find(number)
        if tree is None:
            raise damaged(self.path, ValueError(f"tree {number} is missing"))
        return tree

    def find(self, number: int) -> dict[str, Any] | None:
        """Return the tree of a number, verified by its checksum; None if there is none."""
        with _reporting_damage(self.path):
            rows = list(self._rows(f"{_TREES} WHERE number = ?", number))
            if not rows:
                return None
            ((_, place, content),) = rows
            if place is None:
                return tree_from_bytes(content)
        return read_tree(self.files / place.file)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _rows(self, query: str, *values: int) -> Iterator[tuple[int, Place | None, bytes]]:
        """Yield numbers with their places or contents, verified by their checksums."""
        for number, name, content, expected in self._file().execute(query, values):
            where, place = self.path, None
            if name is None:
                digest = hashlib.sha256(content).hexdigest()
            else:
                where = self.files / check_state_file(name)
                digest = file_checksum(where)
                place = Place(name, digest)
            if _row_checksum(number, name, digest) != expected:
                raise damaged(where, ValueError("its content does not fit its checksum"))
            yield number, place, content

    def _file(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = _connect(self.path, "rw")
        return self._open


def _errno_of(error: sqlite3.Error, path: Path) -> int:
    """Return the error number of a failed write; for the limit on file sizes SQLite has none."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return errno.ENOSPC
    return errno.EFBIG if is_at_size_limit(path) else errno.EIO


def _another_version(path: Path) -> UserError:
    return UserError(
        f"{path} was written by another version of fedray; continue with that version, or start a "
        "new run with another --out"
    )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if path.exists() and not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )


def _begin(file: sqlite3.Connection, synchronous: str) -> None:
    file.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    file.execute("PRAGMA journal_mode = DELETE")
    file.execute("PRAGMA cache_spill = OFF")  # a full cache would lock out readers until the commit
    file.execute(f"PRAGMA synchronous = {synchronous}")
    file.execute(
        "PRAGMA secure_delete = OFF"
    )  # some systems overwrite deleted data with zeros by default
    file.execute("PRAGMA trusted_schema = OFF")
    file.execute("BEGIN IMMEDIATE")
    if file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        for table in _SCHEMA.values():
            file.execute(table)
        file.execute(f"PRAGMA user_version = {FORMAT}")


def _row_checksum(number: int, file: str | None, digest: str) -> str:
    return checksum(f"{number} {file or ''} {digest}")


def _refuse_super_journal(path: Path) -> None:
    """Refuse a journal that names another file, which SQLite would delete; fedray writes none."""
    journal = path.with_name(f"{path.name}-journal")
    if journal.is_file() and journal.read_bytes()[-8:] == _SUPER_JOURNAL:
        raise ValueError("its journal names another file")


def _refuse_other_mode(path: Path) -> None:
    """Refuse a file that another program has set to a write-ahead log; fedray sets none."""
    with path.open("rb") as file:
        versions = file.read(20)[18:]
    if 2 in versions:
        raise ValueError("another program has set it to a write-ahead log")


@contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    """Turn errors from a damaged file into a `UserError` that names the file."""
    try:
        yield
    except UserError:
        raise
    except (*DAMAGE, sqlite3.Error) as error:
        raise damaged(path, error) from None
