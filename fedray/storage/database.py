"""Consistent snapshots of numbered trees of tensors, in one SQLite file and further files.

    FOLDER/states.sqlite    snapshots by name, their small trees, the file names of large trees
    FOLDER/states/          large trees, one safetensors file each

`save` replaces the snapshot "checkpoint" in one transaction: after a kill or on a full disk, the
previous one stays complete. A pin is a copy of its rows under another name, with the same contents
and files; a content or file is removed with the last row that names it. SQLite uses a rollback
journal, because a write-ahead log does not work on network file systems. Each row has a checksum
over its number, file name and content; the facts of a snapshot have a separate one.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedray.errors import UserError
from fedray.storage.entries import check_state_file
from fedray.storage.files import file_checksum, is_at_size_limit, read_regular, sync
from fedray.storage.json_files import checksum, parse_json, sealed, unsealed
from fedray.storage.tensors import (
    DAMAGE,
    LARGE,
    ROW,
    TreeFile,
    damaged,
    read_tree,
    tree_bytes,
    tree_from_bytes,
    tree_to_bytes,
    write_tree,
)
from fedray.trees import StateTree

DATABASE = "states.sqlite"
CHECKPOINT = "checkpoint"
"""The snapshot that `save` replaces and a run resumes from."""
WAIT_SECONDS = 600.0
"""How long a process waits while another one reads or writes the file."""
_SCHEMA = {
    "snapshots": "CREATE TABLE snapshots (name TEXT PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID",
    "trees": "CREATE TABLE trees (snapshot TEXT NOT NULL, number INTEGER NOT NULL, file TEXT, "
    "blob INTEGER, checksum TEXT NOT NULL, PRIMARY KEY (snapshot, number)) WITHOUT ROWID",
    "blobs": "CREATE TABLE blobs (id INTEGER PRIMARY KEY, content BLOB NOT NULL)",
}
_PAGE_BYTES = 16384
"""Takes a quarter less time than SQLite's default, for 1,000 states of 38 kB."""
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names another file; SQLite might delete that file."""
Entry: TypeAlias = StateTree | TreeFile
"""A tree of tensors, or the place of a tree that has been written."""


@dataclass(frozen=True)
class Pin:
    """A further name for the snapshot that is being saved, which later ones do not replace.

    Attributes:
        name: the name of the pin.
        facts: JSON values.
        entries: further trees of the pin alone, under negative numbers.
        replaces: the names of earlier pins that are removed.
        max_bytes: maximal size; a larger pin is not made, but earlier ones are removed.
    """

    name: str
    facts: Mapping[str, Any]
    entries: Mapping[int, Entry]
    replaces: tuple[str, ...]
    max_bytes: float


@dataclass(frozen=True)
class Saved:
    """The result of `StateDatabase.save`: the new places by number, and whether a pin was made."""

    places: Mapping[int, TreeFile]
    has_pin: bool


class StateDatabase:
    """Consistent snapshots of numbered trees.

    Args:
        folder: the folder of the SQLite file; it need not exist.

    Attributes:
        path: the SQLite file.
        files: the folder of the large trees.
        places: the place of each tree of the checkpoint, by number; `ROW` for the SQLite file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE
        self.files = folder / "states"
        self.places: dict[int, TreeFile] = {}
        self._token, self._names = secrets.token_hex(4), itertools.count()
        self._open: sqlite3.Connection | None = None

    def new_name(self) -> str:
        """Return a file name, without suffix, that no tree has ever had."""
        return f"{self._token}-{next(self._names)}"

    # --- writing ----------------------------------------------------------------------------------

    def save(
        self,
        facts: Mapping[str, Any],
        entries: Iterable[tuple[int, Entry]],
        pin: Pin | None = None,
    ) -> Saved:
        """Replace the facts and some trees of the checkpoint, and pin it if `pin` is given.

        May run in a thread while others read; the reader adds the result to `places`.

        Args:
            facts: JSON values; read after the entries.
            entries: the numbers with their new trees.
            pin: a further name for the new checkpoint.

        Raises:
            OSError, SafetensorError: if writing fails; the previous snapshots are then unchanged.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._changing() as file:
            places = {number: self._put(file, CHECKPOINT, number, e) for number, e in entries}
            _write_facts(file, CHECKPOINT, facts)
            has_pin = pin is not None and self._pin(file, pin)
            if self.files.is_dir():
                sync(self.files)
        return Saved(places, has_pin)

    def remove_checkpoint(self) -> bool:
        """Remove the checkpoint, but not its pins; return False if nothing else is there."""
        if set(self.snapshots()) <= {CHECKPOINT}:
            return False
        self.close()
        with self._changing() as file:
            _drop(file, CHECKPOINT)
        with closing(_connect(self.path, "rw")) as file:
            file.execute("VACUUM")
        self.places.clear()
        return True

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction; at its end, remove the contents and files that no row names now."""
        try:
            with closing(_connect(self.path, "rwc")) as file:
                _begin(file)
                files, blobs = _named(file)
                yield file
                files_now, blobs_now = _named(file)
                # last, so that new blobs use pages that the previous transaction freed: these
                # need no copy in the journal
                unnamed = [(blob,) for blob in blobs - blobs_now]
                file.executemany("DELETE FROM blobs WHERE id = ?", unnamed)
                file.execute("COMMIT")
        except sqlite3.Error as error:
            code = _errno_of(error, self.path)
            raise OSError(code, f"{os.strerror(code)} ({error})", str(self.path)) from error
        for name in files - files_now:
            self._remove_file(name)

    def _pin(self, file: sqlite3.Connection, pin: Pin) -> bool:
        """Copy the rows of the clients; return False if they take more bytes than allowed."""
        for name in pin.replaces:
            _drop(file, name)
        file.execute(
            "INSERT INTO trees SELECT ?, number, file, blob, checksum FROM trees "
            "WHERE snapshot = ? AND number >= 0",
            [pin.name, CHECKPOINT],
        )
        places = [self._put(file, pin.name, number, e) for number, e in pin.entries.items()]
        query = "SELECT file, length(content) FROM trees LEFT JOIN blobs ON blob = id"
        rows = file.execute(f"{query} WHERE snapshot = ?", [pin.name])
        size = sum((self.files / name).stat().st_size if name else n for name, n in rows)
        if size <= pin.max_bytes:
            _write_facts(file, pin.name, pin.facts)
            return True
        _drop(file, pin.name)
        for place in places:
            self.remove(place)
        return False

    def _put(self, file: sqlite3.Connection, snapshot: str, number: int, entry: Entry) -> TreeFile:
        """Replace one tree; a small tree in a file is copied into the database."""
        content, place = b"", ROW
        if isinstance(entry, TreeFile):
            path = self.files / entry.file
            if path.stat().st_size < LARGE:
                content = read_regular(path)
            else:
                place = entry
        elif tree_bytes(entry) < LARGE:
            content = tree_to_bytes(entry)
        else:
            place = write_tree(self.files / f"{self.new_name()}.safetensors", entry)
        if place is ROW:
            digest = hashlib.sha256(content).hexdigest()
            blob = file.execute("INSERT INTO blobs (content) VALUES (?)", [content]).lastrowid
            row = [None, blob, _row_checksum(number, None, digest)]
        else:
            sync(self.files / place.file)
            row = [place.file, None, _row_checksum(number, *place)]
        file.execute(
            "INSERT OR REPLACE INTO trees VALUES (?, ?, ?, ?, ?)", [snapshot, number, *row]
        )
        return place

    def remove(self, place: TreeFile) -> None:
        """Delete the file, if any, of a tree that no row names; `tidy` retries if this fails."""
        if place is not ROW:
            self._remove_file(place.file)

    def _remove_file(self, name: str) -> None:
        with suppress(OSError):
            (self.files / name).unlink(missing_ok=True)

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> dict[str, Any] | None:
        """Return the facts of the checkpoint after verifying all data; None without a checkpoint.

        Raises:
            UserError: if a file is damaged or missing.
        """
        self.close()
        self.places = {}
        snapshots = self.snapshots()
        if not snapshots:
            return None
        with _reporting_damage(self.path):
            counts = dict.fromkeys(snapshots, 0)
            digests: dict[str | int, str] = {}
            query = "SELECT snapshot, number, file, blob, checksum FROM trees"
            for snapshot, number, name, blob, expected in self._file().execute(query):
                if (name or blob) not in digests:
                    digests[name or blob] = self._digest(name, blob)
                digest = digests[name or blob]
                self._check_row(number, name, digest, expected)
                counts[snapshot] += 1
                if snapshot == CHECKPOINT:
                    self.places[number] = TreeFile(name, digest) if name else ROW
            if counts != {name: facts["trees"] for name, facts in snapshots.items()}:
                raise ValueError("trees are missing")
            (state,) = self._file().execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise ValueError(" ".join(state.split()))
        return snapshots.get(CHECKPOINT)

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """Return the facts of all snapshots by name, without verifying the trees."""
        if not self.path.exists():
            return {}
        with _reporting_damage(self.path):
            _refuse_super_journal(self.path)
            schema = dict(self._file().execute("SELECT name, sql FROM sqlite_master").fetchall())
            if not schema:
                return {}  # killed before the first commit
            if schema != _SCHEMA:
                raise ValueError("its tables are not those of this version of fedray")
            ((page_bytes,),) = self._file().execute("PRAGMA page_size").fetchall()
            if self.path.stat().st_size % page_bytes:
                raise ValueError("it is truncated")
            rows = self._file().execute("SELECT name, json FROM snapshots").fetchall()
            if not rows:
                raise ValueError("it has no snapshot")
            return {name: unsealed(parse_json(text)) for name, text in rows}

    def read(self, number: int, snapshot: str = CHECKPOINT) -> dict[str, Any]:
        """Return the tree of a number like `find`, but treat a missing tree as damage."""
        tree = self.find(number, snapshot)
        if tree is None:
            raise damaged(self.path, ValueError(f"tree {number} is missing"))
        return tree

    def find(self, number: int, snapshot: str = CHECKPOINT) -> dict[str, Any] | None:
        """Return the tree of a number, verified by its checksum; None if there is none."""
        query = "SELECT file, blob, checksum FROM trees WHERE snapshot = ? AND number = ?"
        with _reporting_damage(self.path):
            rows = self._file().execute(query, [snapshot, number]).fetchall()
            if not rows:
                return None
            ((name, blob, expected),) = rows
            self._check_row(number, name, self._digest(name, blob), expected)
            if name is None:
                return tree_from_bytes(self._content(blob))
        return read_tree(self.files / name)

    def used_files(self) -> set[str]:
        """Return the names of the files of all snapshots."""
        if not self.snapshots():
            return set()
        with _reporting_damage(self.path):
            return _named(self._file())[0]

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _digest(self, name: str | None, blob: int) -> str:
        if name is None:
            return hashlib.sha256(self._content(blob)).hexdigest()
        return file_checksum(self.files / check_state_file(name))

    def _content(self, blob: int) -> bytes:
        query = "SELECT content FROM blobs WHERE id = ?"
        ((content,),) = self._file().execute(query, [blob]).fetchall()
        return bytes(content)

    def _check_row(self, number: int, name: str | None, digest: str, expected: str) -> None:
        if _row_checksum(number, name, digest) != expected:
            where = self.files / name if name else self.path
            raise damaged(where, ValueError("its content does not fit its checksum"))

    def _file(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = _connect(self.path, "rw")
        return self._open


def _named(file: sqlite3.Connection) -> tuple[set[str], set[int]]:
    """Return the files and the contents that rows name."""
    rows = file.execute("SELECT file, blob FROM trees").fetchall()
    return {name for name, _ in rows if name}, {blob for _, blob in rows if blob}


def _write_facts(file: sqlite3.Connection, name: str, facts: Mapping[str, Any]) -> None:
    query = "SELECT count(*) FROM trees WHERE snapshot = ?"
    ((count,),) = file.execute(query, [name]).fetchall()
    text = json.dumps(sealed({**facts, "trees": count}), allow_nan=False)
    file.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", [name, text])


def _drop(file: sqlite3.Connection, name: str) -> None:
    file.execute("DELETE FROM trees WHERE snapshot = ?", [name])
    file.execute("DELETE FROM snapshots WHERE name = ?", [name])


def _errno_of(error: sqlite3.Error, path: Path) -> int:
    """Return the error number of a failed write; for the limit on file sizes SQLite has none."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return errno.ENOSPC
    return errno.EFBIG if is_at_size_limit(path) else errno.EIO


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if path.exists() and not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )


def _begin(file: sqlite3.Connection) -> None:
    file.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    file.execute("PRAGMA journal_mode = DELETE")
    file.execute("PRAGMA cache_spill = OFF")  # a full cache would lock out readers until the commit
    file.execute("PRAGMA synchronous = EXTRA")
    file.execute("PRAGMA secure_delete = OFF")  # some systems overwrite deleted data by default
    file.execute("PRAGMA trusted_schema = OFF")
    file.execute("BEGIN IMMEDIATE")
    if file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        for table in _SCHEMA.values():
            file.execute(table)


def _row_checksum(number: int, file: str | None, digest: str) -> str:
    return checksum(f"{number} {file or ''} {digest}")


def _refuse_super_journal(path: Path) -> None:
    """Refuse a journal that names another file, which SQLite would delete; fedray writes none."""
    journal = path.with_name(f"{path.name}-journal")
    if journal.is_file() and journal.read_bytes()[-8:] == _SUPER_JOURNAL:
        raise ValueError("its journal names another file")


@contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    """Turn errors from a damaged file into a `UserError` that names the file."""
    try:
        yield
    except UserError:
        raise
    except (*DAMAGE, sqlite3.Error) as error:
        raise damaged(path, error) from None
