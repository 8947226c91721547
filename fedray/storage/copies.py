"""Copy a folder of results to a URI while a run writes it, and fetch the copy on another machine.

FEDRAY_RESULTS may be any URI that pyarrow.fs opens: s3://bucket/results, gs://..., file:///...
Results are always written to the local disk; the copy follows within seconds. A run can be resumed
from the copy at any moment: each file is copied after the files that it needs, and replaced files
are deleted last. An SQLite file is copied as of its last transaction.

The file owner.json holds a random text that identifies the owner of a copy. It is written into the
local folder before the first copy and is copied first. A folder is copied only to a place without
owner.json, or with the same one.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, BinaryIO, TypeAlias
from uuid import uuid4

from fedray.errors import RunFailed, UserError
from fedray.masking import mask
from fedray.storage.files import LOCK, is_temporary, results_home, results_uri, write_json

if TYPE_CHECKING:
    from pyarrow.fs import SubTreeFileSystem

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
_OWNER, _ROUNDS, _RESULT = "owner.json", "rounds.jsonl", "result.json"
_DATABASE = "states.sqlite"
_BEGUN = ("config.yaml", "sweep.json", "plan.json")
"""Files that mark a folder as a run, a sweep or a table."""
_ORDER = {name: i for i, name in enumerate((_OWNER, "", _ROUNDS, _RESULT, _DATABASE, *_BEGUN))}
"""Order of copying: a file follows those that it needs. The key "" covers all other files."""
_LOCAL = (LOCK, "tune", f"{_DATABASE}-journal")
_TRIES = 5
_PART_BYTES = 2**24
_Stamps: TypeAlias = dict[str, tuple[int, int]]
"""Size and modification time of files by name, to detect changes."""


class _LostCopy(OSError):
    """Another run has taken over the place of a copy."""


@contextmanager
def copying(folder: Path, *, by_entry: bool = False) -> Iterator[None]:
    """Copy a folder every few seconds and at the end, if FEDRAY_RESULTS is a URI.

    With `by_entry`, copy each run in `folder` by itself, to a place that other machines share.

    Raises:
        UserError: if the URI cannot be written, or holds the copy of another run.
        RunFailed: if the last copy fails.
    """
    uri = _uri_of(folder)
    if uri is None:
        yield
        return
    if not by_entry:
        check_owner(folder)
    files = _open(uri)
    with _naming(f"{uri} cannot be written"):
        probe = f".{os.getpid()}.tmp.probe"
        _write(files, probe, BytesIO())
        files.delete_file(probe)
    copy, is_over = (_StoreCopy if by_entry else _Copy)(folder, files), Event()
    thread = Thread(target=_keep_copying, args=(copy, is_over, uri), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        failure = _failure_of(copy)
    if failure is not None:
        message = f"{folder} could not be copied to {uri} ({failure}); the local folder is complete"
        raise RunFailed(mask(message))


def check_owner(folder: Path, go_on: str = "--resume") -> None:
    """Refuse a folder whose copy would replace the copy of another run.

    Args:
        folder: the folder to copy to FEDRAY_RESULTS; it need not exist.
        go_on: the option that resumes a run, for the message.

    Raises:
        UserError: if the URI holds the copy of another run, or cannot be read.
    """
    uri = _uri_of(folder)
    if uri is None:
        return
    files = _open(uri)
    with _naming(f"{uri} cannot be read"):
        copied = {name: _read(files, name) for name in (_OWNER, *_BEGUN)}
    name, content = next((item for item in copied.items() if item[1] is not None), ("", b""))
    if not name or ((folder / name).is_file() and (folder / name).read_bytes() == content):
        return
    resume = "" if _is_begun(folder) else f"go on with {go_on}, or "
    problem = f"{uri} already holds other results than {folder}"
    cure = f"{resume}give the folder another name, or FEDRAY_RESULTS another URI"
    raise UserError(mask(f"FEDRAY_RESULTS: {problem}; {cure}"))


def fetch_missing(folder: Path) -> None:
    """Fetch the copy of a folder, if FEDRAY_RESULTS is a URI.

    Existing local files, and folders that hold a run, a sweep or a table, are not changed.
    """
    uri = _uri_of(folder)
    if uri is None or _is_begun(folder):
        return
    files = _open(uri)
    with _naming(f"{uri} cannot be read"):
        for _ in range(_TRIES):  # another machine may replace a checkpoint during a fetch
            with suppress(FileNotFoundError):
                _fetch(files, folder)
                return
        raise OSError("its files kept changing during the download")


def _fetch(files: SubTreeFileSystem, folder: Path) -> None:
    begun = {path.parent for head in _BEGUN for path in folder.rglob(head)}
    names = set(_names_in(files))
    missing = [n for n in names if begun.isdisjoint((folder / n).parents)]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{os.getpid()}.tmp.", dir=folder) as temporary:
        for name in sorted(missing, key=_rank, reverse=True):  # a file precedes those it needs
            path = Path(temporary, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.open_input_stream(name, compression=None) as stream, path.open("wb") as file:
                shutil.copyfileobj(stream, file, _PART_BYTES)
        if set(_names_in(files)) != names:
            raise FileNotFoundError
        for name in sorted(missing, key=_rank):
            if not (folder / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                Path(temporary, name).rename(folder / name)


class _Copy:
    """The remote copy of one folder, which need not exist yet."""

    def __init__(self, folder: Path, files: SubTreeFileSystem) -> None:
        self._folder, self._files = folder, files
        self._copied: _Stamps | None = None

    def update(self) -> None:
        """Copy what has changed since the last update; raise `_LostCopy` for another run's copy."""
        if not _is_begun(self._folder):
            return
        copied = self._copied = self._copied_before()
        for _ in range(_TRIES):  # the run may replace a checkpoint during a copy
            with TemporaryDirectory(prefix=f".{os.getpid()}.tmp.", dir=self._folder) as links:
                stamps = self._link_changed(Path(links), copied)
                if stamps is not None:
                    self._upload(stamps, Path(links), copied)
                    return
        raise OSError(f"the files in {self._folder} kept changing during the copy")

    def _copied_before(self) -> _Stamps:
        """Return the stamps of the remote files; (-1, -1) for files of an earlier process."""
        owner = self._folder / _OWNER
        ours = owner.read_bytes() if owner.is_file() else _new_owner(self._folder)
        theirs = _read(self._files, _OWNER)
        if theirs not in (None, ours):
            raise _LostCopy(f"the place now belongs to another run, according to its {_OWNER}")
        if theirs is not None and self._copied is not None:
            return self._copied
        replaced = {"checkpoints", _ROUNDS}  # other remote files are never deleted
        names = _names_in(self._files)
        return {n: (-1, -1) for n in names if replaced.intersection(PurePath(n).parts)}

    def _link_changed(self, links: Path, copied: _Stamps) -> _Stamps | None:
        """Hard-link changed files, so that they stay until they are copied; return all stamps.

        A file may grow before it is copied; a checkpoint needs its beginning only. Return None if
        a file was deleted or a database changed in the meantime.
        """
        try:
            stamps = _stamps_of(self._folder)
            changed = [name for name in stamps if stamps[name] != copied.get(name)]
            for name in changed:
                (links / name).parent.mkdir(parents=True, exist_ok=True)
                link = _copy_database if _is_database(name) else _link
                link(self._folder / name, links / name)
            for name in filter(_is_database, changed):
                if _stamp(self._folder / name) != stamps[name]:
                    return None  # the database may refer to files that were not linked
        except FileNotFoundError:
            return None
        return stamps

    def _upload(self, stamps: _Stamps, links: Path, copied: _Stamps) -> None:
        for name in sorted(stamps, key=_rank):
            if stamps[name] != copied.get(name):
                with (links / name).open("rb") as content:
                    _write(self._files, name, content)
                copied[name] = stamps[name]
        for name in sorted(copied.keys() - stamps.keys(), key=_rank, reverse=True):
            with suppress(FileNotFoundError):
                self._files.delete_file(name)
            del copied[name]


class _StoreCopy:
    """The remote copies of the runs in a store that several machines share.

    This machine copies runs that change locally, and runs whose remote copy is missing or
    incomplete. A finished remote run is left alone; any other is taken over, and its former owner
    stops copying it.
    """

    def __init__(self, folder: Path, files: SubTreeFileSystem) -> None:
        self._folder, self._files = folder, files
        self._copies: dict[str, _Copy | None] = {}
        remote_names = set(_names_in(files))
        self._before: dict[str, int | None] = {}
        for run in self._runs():
            result = run / _RESULT
            is_over = result.is_file() and _says_end(result.read_bytes())
            is_behind = is_over and not _says_end(_read(files, f"{run.name}/{_RESULT}"))
            if f"{run.name}/{_BEGUN[0]}" in remote_names and not is_behind:
                self._before[run.name] = _last_saved(run)

    def update(self) -> None:
        """Copy what has changed since the last update."""
        for run in self._runs():
            if run.name in self._before and self._before[run.name] == _last_saved(run):
                continue
            self._before.pop(run.name, None)
            if run.name not in self._copies:
                self._copies[run.name] = self._begin(run)
            if (copy := self._copies[run.name]) is not None:
                try:
                    copy.update()
                except _LostCopy:
                    self._copies[run.name] = None

    def _begin(self, run: Path) -> _Copy | None:
        """Become the owner of a run's copy; return None if the remote run is finished."""
        from pyarrow.fs import SubTreeFileSystem

        files = SubTreeFileSystem(self._files.base_path + run.name, self._files.base_fs)
        names = _names_in(files)
        if _says_end(_read(files, _RESULT)):
            return None
        checkpoint = f"checkpoints/{_DATABASE}"
        if checkpoint in names:  # its rounds are replaced first, and then no longer fit
            files.delete_file(checkpoint)
        _write(files, _OWNER, BytesIO(_new_owner(run)))
        return _Copy(run, files)

    def _runs(self) -> list[Path]:
        return sorted(path.parent for path in self._folder.glob(f"[!.]*/{_BEGUN[0]}"))


def _says_end(result: bytes | None) -> bool:
    """Return True if the content of a result.json says that its run has ended."""
    try:
        return json.loads(result or b"{}").get("ended") is not None
    except (ValueError, AttributeError):  # not the file of a run
        return False


def _last_saved(run: Path) -> int | None:
    """Return the time at which result.json was written; every resumed run writes it again."""
    result = run / _RESULT
    return result.stat().st_mtime_ns if result.is_file() else None


def _keep_copying(copy: _Copy | _StoreCopy, is_over: Event, uri: str) -> None:
    has_warned = False
    while not is_over.wait(EVERY_SECONDS):
        failure = _failure_of(copy)
        if failure is not None and not has_warned:
            log.warning("%s", mask(f"results cannot be copied to {uri} ({failure}); retrying"))
            has_warned = True


def _failure_of(copy: _Copy | _StoreCopy) -> Exception | None:
    from pyarrow import ArrowException

    try:
        copy.update()
    except (ArrowException, OSError, ValueError) as error:
        return error
    return None


def _rank(name: str | PurePath) -> tuple[int, str]:
    return _ORDER.get(PurePath(name).name, _ORDER[""]), str(name)


# --- local files ----------------------------------------------------------------------------------


def _is_begun(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _BEGUN)


def _stamps_of(folder: Path) -> _Stamps:
    """Return the stamps of the files to copy: no links, no files of this machine alone."""
    stamps = {}
    for path in sorted(folder.rglob("*"), key=_rank):
        name = path.relative_to(folder)
        is_local = any(part in _LOCAL or is_temporary(part) for part in name.parts)
        if not is_local and stat.S_ISREG(path.lstat().st_mode):
            stamps[name.as_posix()] = _stamp(path)
    return stamps


def _stamp(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_size, status.st_mtime_ns


def _link(source: Path, target: Path) -> None:
    """Make a hard link, or a copy if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _is_database(name: str) -> bool:
    return PurePath(name).name == _DATABASE


def _copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite file, which a run may be changing, as of its last transaction.

    Opening and closing it as a plain file would release this process's locks on it.
    """
    uri = f"{source.absolute().as_uri()}?mode=rw"
    try:
        with (
            closing(sqlite3.connect(uri, uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        if not source.exists():
            raise FileNotFoundError(str(source)) from None
        raise OSError(f"{source}: {error}") from error


def _new_owner(folder: Path) -> bytes:
    write_json(folder / _OWNER, {"owner": uuid4().hex})
    return (folder / _OWNER).read_bytes()


# --- remote files ---------------------------------------------------------------------------------


def _uri_of(folder: Path) -> str | None:
    """Return the URI of a folder's copy; None if FEDRAY_RESULTS is not a URI."""
    uri = results_uri()
    if uri is None:
        return None
    home, folder = results_home(), folder.resolve()
    name = Path(folder.name)
    if folder.is_relative_to(home):
        name = folder.relative_to(home)
    elif re.fullmatch(r"seed_\d+", folder.name):  # not unique: every experiment has seed_0
        name = Path(folder.parent.name, folder.name)
    place, mark, query = uri.partition("?")  # s3://bucket/results?endpoint_override=...
    return f"{place.rstrip('/')}/{name.as_posix()}{mark}{query}"


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Turn errors of a file system into a `UserError` whose message begins with `what`."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError) as error:
        cure = "give a folder, or a URI such as s3://bucket/results"
        raise UserError(mask(f"FEDRAY_RESULTS: {what} ({error}); {cure}")) from None


def _open(uri: str) -> SubTreeFileSystem:
    from pyarrow.fs import FileSystem, SubTreeFileSystem

    with _naming(f"{uri} cannot be used"):
        files, place = FileSystem.from_uri(uri)
    return SubTreeFileSystem(place, files)


def _names_in(files: SubTreeFileSystem) -> list[str]:
    """Return the names of all complete files."""
    from pyarrow.fs import FileSelector

    infos = files.get_file_info(FileSelector("", allow_not_found=True, recursive=True))
    names = [info.path for info in infos if info.is_file]
    return [name for name in names if not any(map(is_temporary, PurePath(name).parts))]


def _read(files: SubTreeFileSystem, name: str) -> bytes | None:
    try:
        with files.open_input_stream(name, compression=None) as stream:
            return bytes(stream.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _write(files: SubTreeFileSystem, name: str, content: BinaryIO) -> None:
    """Write a file in one step: rename a temporary file, unless writes are atomic as in S3."""
    begun = name
    if files.base_fs.type_name in ("local", "hdfs"):
        begun = str(PurePath(name).with_name(f".{os.getpid()}.tmp.{PurePath(name).name}"))
        files.create_dir(str(PurePath(name).parent), recursive=True)
    with files.open_output_stream(begun, compression=None) as stream:
        shutil.copyfileobj(content, stream, _PART_BYTES)
    if begun != name:
        files.move(begun, name)
