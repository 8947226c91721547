"""Copy a folder of results to a URI while it is written, and fetch the copy on another machine.

FEDRAY_RESULTS may be any URI that pyarrow.fs opens: s3://bucket/results, gs://..., file:///...
Results are always written to this machine's disk; the copy follows within seconds. It can be
resumed at any moment: each file is copied after those that it needs, and what was replaced is
deleted last. An SQLite file is copied as of its last transaction.

owner.json, a random text, says whose copy it is. It is written into the folder before the first
copy and is the first file there. A folder is copied only to where the same owner.json is, or none.
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
from fedray.files import LOCK, is_temporary, results_home, results_uri, write_json
from fedray.masking import mask

if TYPE_CHECKING:
    from pyarrow.fs import SubTreeFileSystem

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
_OWNER, _ROUNDS, _RESULT = "owner.json", "rounds.jsonl", "result.json"
_DATABASE = "states.sqlite"
_BEGUN = ("config.yaml", "sweep.json", "plan.json")
"""A folder with one of these files holds a run, a sweep or a table."""
_ORDER = {name: i for i, name in enumerate((_OWNER, "", _ROUNDS, _RESULT, _DATABASE, *_BEGUN))}
"""The order in which files are copied, all others as "": each after those that it needs."""
_LOCAL = (LOCK, "tune", f"{_DATABASE}-journal")
_TRIES = 5
_PART_BYTES = 2**24
_Stamps: TypeAlias = dict[str, tuple[int, int]]
"""Size and time of change of files by name, which tell whether they have changed."""


class _LostCopy(OSError):
    """Another run is copied to where a folder was."""


@contextmanager
def copying(folder: Path, *, by_entry: bool = False) -> Iterator[None]:
    """Copy a folder to FEDRAY_RESULTS every few seconds and at the end, if that is a URI.

    With `by_entry`, copy each run in `folder` by itself; other machines copy theirs there, too.

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
        said = f"{folder} could not be copied to {uri} ({failure}); it is whole here"
        raise RunFailed(mask(said))


def check_owner(folder: Path, go_on: str = "--resume") -> None:
    """Refuse a folder whose copy would replace the copy of another run.

    Args:
        folder: the folder to be copied to FEDRAY_RESULTS; it need not exist.
        go_on: the option that resumes a run, for the message.

    Raises:
        UserError: if the URI holds another copy, or cannot be read.
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
    said = f"{uri} already holds other results than {folder}; {resume}give the folder another name"
    raise UserError(mask(f"FEDRAY_RESULTS: {said}, or FEDRAY_RESULTS another URI"))


def fetch_missing(folder: Path) -> None:
    """Fetch the copy of a folder from FEDRAY_RESULTS, if that is a URI.

    Local files are not changed, nor are folders in which a run, a sweep or a table was begun.
    """
    uri = _uri_of(folder)
    if uri is None or _is_begun(folder):
        return
    files = _open(uri)
    with _naming(f"{uri} cannot be read"):
        for _ in range(_TRIES):  # another machine may replace a checkpoint meanwhile
            with suppress(FileNotFoundError):
                _fetch(files, folder)
                return
        raise OSError("it changed again and again while it was read")


def _fetch(files: SubTreeFileSystem, folder: Path) -> None:
    begun = {path.parent for head in _BEGUN for path in folder.rglob(head)}
    names = set(_names_in(files))
    missing = [n for n in names if begun.isdisjoint((folder / n).parents)]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{os.getpid()}.tmp.", dir=folder) as temporary:
        for name in sorted(missing, key=_rank, reverse=True):  # what needs others comes first
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
    """The copy of one folder, which need not exist yet."""

    def __init__(self, folder: Path, files: SubTreeFileSystem) -> None:
        self._folder, self._files = folder, files
        self._copied: _Stamps | None = None

    def update(self) -> None:
        """Copy what has changed since the last update; raise `_LostCopy` for another run's copy."""
        if not _is_begun(self._folder):
            return
        copied = self._copied = self._copied_before()
        for _ in range(_TRIES):  # the run may replace a checkpoint meanwhile
            with TemporaryDirectory(prefix=f".{os.getpid()}.tmp.", dir=self._folder) as links:
                stamps = self._link_changed(Path(links), copied)
                if stamps is not None:
                    self._upload(stamps, Path(links), copied)
                    return
        raise OSError(f"{self._folder} changed again and again while it was copied")

    def _copied_before(self) -> _Stamps:
        """Return the stamps of what is there; (-1, -1) of what an earlier process copied."""
        owner = self._folder / _OWNER
        ours = owner.read_bytes() if owner.is_file() else _new_owner(self._folder)
        theirs = _read(self._files, _OWNER)
        if theirs not in (None, ours):
            raise _LostCopy(f"another run is copied there, as its {_OWNER} says")
        if theirs is not None and self._copied is not None:
            return self._copied
        replaced = {"checkpoints", "models", _ROUNDS}  # other files there are never deleted
        names = _names_in(self._files)
        return {n: (-1, -1) for n in names if replaced.intersection(PurePath(n).parts)}

    def _link_changed(self, links: Path, copied: _Stamps) -> _Stamps | None:
        """Link what has changed, so that it stays until it is copied.

        A file that grows may be longer when it is copied; checkpoints need its beginning. Return
        None if a file was deleted or a database changed meanwhile.
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
                    return None  # it may name files that were not there before
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
    """The copies of the runs in a store, to which other machines copy runs of the same names.

    This machine copies the runs that change here, and those that are not there or not whole there.
    A run that is whole there stays; any other is taken over, and its former owner leaves it.
    """

    def __init__(self, folder: Path, files: SubTreeFileSystem) -> None:
        self._folder, self._files = folder, files
        self._copies: dict[str, _Copy | None] = {}
        there = set(_names_in(files))
        self._before: dict[str, int | None] = {}
        for run in self._runs():
            result = run / _RESULT
            is_over = result.is_file() and _says_end(result.read_bytes())
            is_behind = is_over and not _says_end(_read(files, f"{run.name}/{_RESULT}"))
            if f"{run.name}/{_BEGUN[0]}" in there and not is_behind:
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
        """Become the owner of a run's copy; None if the run is whole there."""
        from pyarrow.fs import SubTreeFileSystem

        files = SubTreeFileSystem(self._files.base_path + run.name, self._files.base_fs)
        names = _names_in(files)
        if _says_end(_read(files, _RESULT)):
            return None
        checkpoint = f"checkpoints/{_DATABASE}"
        if checkpoint in names:  # the rounds that it needs are replaced before it
            files.delete_file(checkpoint)
        _write(files, _OWNER, BytesIO(_new_owner(run)))
        return _Copy(run, files)

    def _runs(self) -> list[Path]:
        return sorted(path.parent for path in self._folder.glob(f"[!.]*/{_BEGUN[0]}"))


def _says_end(result: bytes | None) -> bool:
    """Return True if a result.json says that its run has come to its end."""
    try:
        return json.loads(result or b"{}").get("ended") is not None
    except (ValueError, AttributeError):  # not a run's
        return False


def _last_saved(run: Path) -> int | None:
    """Return when result.json was written; every process that resumes a run writes it."""
    result = run / _RESULT
    return result.stat().st_mtime_ns if result.is_file() else None


def _keep_copying(copy: _Copy | _StoreCopy, is_over: Event, uri: str) -> None:
    was_said = False
    while not is_over.wait(EVERY_SECONDS):
        failure = _failure_of(copy)
        if failure is not None and not was_said:
            log.warning("%s", mask(f"results cannot be copied to {uri} ({failure}); trying on"))
            was_said = True


def _failure_of(copy: _Copy | _StoreCopy) -> OSError | None:
    try:
        copy.update()
    except OSError as error:
        return error
    return None


def _rank(name: str | PurePath) -> tuple[int, str]:
    return _ORDER.get(PurePath(name).name, _ORDER[""]), str(name)


# --- this machine's files -------------------------------------------------------------------------


def _is_begun(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _BEGUN)


def _stamps_of(folder: Path) -> _Stamps:
    """Return the stamps of a folder's files, without links and what others do not need."""
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
    """Make a hard link, or a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _is_database(name: str) -> bool:
    return PurePath(name).name == _DATABASE


def _copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite file, which a run may change meanwhile, as of its last transaction.

    To open it as a plain file would end the locks that this process has on it.
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


# --- files at a URI -------------------------------------------------------------------------------


def _uri_of(folder: Path) -> str | None:
    """Return the URI of a folder's copy; None if FEDRAY_RESULTS is not a URI."""
    uri = results_uri()
    if uri is None:
        return None
    home, folder = results_home(), folder.resolve()
    name = Path(folder.name)
    if folder.is_relative_to(home):
        name = folder.relative_to(home)
    elif re.fullmatch(r"seed_\d+", folder.name):  # every experiment has folders of these names
        name = Path(folder.parent.name, folder.name)
    place, mark, query = uri.partition("?")  # s3://bucket/results?endpoint_override=...
    return f"{place.rstrip('/')}/{name.as_posix()}{mark}{query}"


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Turn an error of a file system into a UserError, which begins with `what`."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError) as error:
        said = f"{what} ({error}); give a folder, or a URI such as s3://bucket/results"
        raise UserError(mask(f"FEDRAY_RESULTS: {said}")) from None


def _open(uri: str) -> SubTreeFileSystem:
    from pyarrow.fs import FileSystem, SubTreeFileSystem

    with _naming(f"{uri} cannot be used"):
        files, place = FileSystem.from_uri(uri)
    return SubTreeFileSystem(place, files)


def _names_in(files: SubTreeFileSystem) -> list[str]:
    """Return the names of all files that are whole."""
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
    """Write a file whole or not at all, which object stores do by themselves."""
    begun = name
    if files.base_fs.type_name in ("local", "hdfs"):
        begun = str(PurePath(name).with_name(f".{os.getpid()}.tmp.{PurePath(name).name}"))
        files.create_dir(str(PurePath(name).parent), recursive=True)
    with files.open_output_stream(begun, compression=None) as stream:
        shutil.copyfileobj(content, stream, _PART_BYTES)
    if begun != name:
        files.move(begun, name)
