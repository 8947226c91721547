"""Results at a URI: a folder of this node, copied there again and again.

What is computed is written to this node's disk as always; a copy is behind it by a few seconds, and
never torn: whatever a checkpoint names is there before its meta.json, and what it replaces goes
after it. So a run or sweep whose machine is lost goes on from the copy.

The copy of a run, a sweep or a table is one invocation's alone: what a folder holds is compared
with it first, and nothing goes where another's is. The runs of tables lie in a store to which
several machines copy: there each touches only the runs that it has changed itself.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from fedray.errors import RunFailed, UserError
from fedray.files import LOCK
from fedray.masking import mask
from fedray.records import Run
from fedray.runtime.fetching import META, PART, TRIES
from fedray.runtime.remote import by_entry, file_system, files_at, is_being_written, reader, uri_of
from fedray.runtime.whose import BEGUN, refuse_anothers

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
_LEFT_OUT = {LOCK, "tune"}
"""What only the living processes of a node need."""
_RESULT, _ROUNDS = "result.json", "rounds.jsonl"


class Stamp(NamedTuple):
    """What tells whether a file was changed."""

    size: int
    changed: int


UNKNOWN = Stamp(-1, -1)
"""Of what an earlier process copied."""


class Mirror:
    """A copy of a folder at a URI, which is this folder's alone.

    Args:
        folder: what is copied; it need not exist.
        uri: where to.

    Raises:
        UserError: when nothing can be written there, or there is another's copy.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        from pyarrow.fs import HadoopFileSystem, LocalFileSystem

        self._folder = folder
        self._uri = uri
        self._files, root = file_system(uri)
        self._place = PurePosixPath(root)
        self._has_folders = isinstance(self._files, HadoopFileSystem | LocalFileSystem)
        try:
            self._copied = dict.fromkeys(self._copied_before(), UNKNOWN)
            self._prove_writable()
        except OSError as error:
            raise UserError(
                mask(
                    f"FEDRAY_RESULTS: {uri} cannot be written ({error}); give a URI with the "
                    "rights to write there, or a folder"
                )
            ) from None

    def _copied_before(self) -> list[str]:
        """What earlier processes of this invocation have copied: it goes where it is gone here.

        What a stranger has left there stays.
        """
        place = str(self._place)
        refuse_anothers(self._folder, self._uri, reader(self._files, place))
        names = files_at(self._files, place)
        return list(names) if names.keys() & set(BEGUN) else []

    def _prove_writable(self) -> None:
        probe = f".{os.getpid()}.tmp.probe"
        self._files.create_dir(str(self._place), recursive=True)
        self._write(BytesIO(), probe)
        with suppress(FileNotFoundError):
            self._files.delete_file(str(self._place / probe))

    def copy(self) -> None:
        """Copy what has changed since the last time.

        Raises:
            OSError: when it cannot be written.
        """
        held = self._folder / f".{os.getpid()}.tmp.mirror"
        for _ in range(TRIES):  # a checkpoint may be replaced meanwhile
            try:
                now = self._hold(held)
                if now is not None:
                    self._copy(now, held)
                    return
            finally:
                shutil.rmtree(held, ignore_errors=True)
        raise OSError(f"{self._folder} changed again and again while it was copied")

    def _hold(self, held: Path) -> Mapping[str, Stamp] | None:
        """Keep what has changed, by links, for as long as copying takes; None if something went.

        Files that grow may be longer when they are copied: of those a checkpoint names the begin.
        """
        try:
            now = self._now()
            for name, stamp in now.items():
                if self._copied.get(name) != stamp:
                    (held / name).parent.mkdir(parents=True, exist_ok=True)
                    _link(self._folder / name, held / name)
        except FileNotFoundError:
            return None
        return now

    def _now(self) -> Mapping[str, Stamp]:
        """What the copy should hold."""
        return _listed(self._folder)

    def _copy(self, now: Mapping[str, Stamp], held: Path) -> None:
        for name in sorted(now, key=_order):
            if self._copied.get(name) != now[name]:
                with (held / name).open("rb") as content:
                    self._write(content, name)
                self._copied[name] = now[name]
        for name in self._copied.keys() - now.keys():
            with suppress(FileNotFoundError):
                self._files.delete_file(str(self._place / name))
            del self._copied[name]

    def _write(self, content: BinaryIO, name: str) -> None:
        """A file, whole or not at all: an object store does that by itself."""
        place = self._place / name
        begun = place
        if self._has_folders:
            begun = place.with_name(f".{os.getpid()}.tmp.{place.name}")
            self._files.create_dir(str(place.parent), recursive=True)
        with self._files.open_output_stream(str(begun)) as stream:
            shutil.copyfileobj(content, stream, PART)
        if self._has_folders:
            self._files.move(str(begun), str(place))


class SharedMirror(Mirror):
    """Copies of the entries of a folder, at a URI to which other machines copy theirs.

    An entry is a run in a folder that is called after what determines its numbers. It is copied
    once something of it is new here; then it is this process's, unless it is whole there.
    """

    def _copied_before(self) -> list[str]:
        there = by_entry(files_at(self._files, str(self._place)))
        here = by_entry(_listed(self._folder))
        self._ours: set[str] = set()
        self._others: set[str] = set()
        self._before = {
            entry: stamps
            for entry, stamps in here.items()
            if entry in there and not (_looks_whole(stamps) and not _looks_whole(there[entry]))
        }
        return []

    def _now(self) -> Mapping[str, Stamp]:
        found = by_entry(_listed(self._folder))
        for entry in found.keys() - self._others:
            if entry in self._ours or found[entry] != self._before.get(entry):
                self._look_at(entry, is_whole=_looks_whole(found[entry]))
        ours = found.keys() & self._ours
        return {_joined(entry, name): found[entry][name] for entry in ours for name in found[entry]}

    def _look_at(self, entry: str, *, is_whole: bool) -> None:
        """Make an entry ours: what others have left of it goes; what is whole there stays."""
        place = str(self._place / entry)
        if entry in self._ours and is_whole:
            return
        if _is_whole(self._files, place):  # another was faster
            self._others.add(entry)
            self._ours.discard(entry)
            kept = {name: stamp for name, stamp in self._copied.items() if not _is_in(name, entry)}
            self._copied = kept
        elif entry not in self._ours:
            left = files_at(self._files, place) if (self._folder / entry).is_dir() else {}
            whole = [name for name in left if not is_being_written(name)]  # the others may come yet
            self._copied |= {_joined(entry, name): UNKNOWN for name in whole}
            self._ours.add(entry)


@contextmanager
def mirrored(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Copy a folder to $FEDRAY_RESULTS every few seconds, and at the end, where that is a URI.

    Args:
        folder: what is copied.
        shared: whether other machines copy entries of it there, too.

    Raises:
        UserError: when nothing can be written there, or there is another's copy.
        RunFailed: when the last copy could not be made.
    """
    uri = uri_of(folder)
    if uri is None:
        yield
        return
    mirror, is_over = (SharedMirror if shared else Mirror)(folder, uri), threading.Event()
    thread = threading.Thread(target=_keep_copying, args=(mirror, is_over, uri), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        _end(mirror, thread, is_over)  # what stopped it is more important
        raise
    failure = _end(mirror, thread, is_over)
    if failure is not None:
        raise RunFailed(
            mask(f"{folder} could not be copied to {uri} ({failure}); it is whole here")
        )


def _keep_copying(mirror: Mirror, is_over: threading.Event, uri: str) -> None:
    was_said = False
    while not is_over.wait(EVERY_SECONDS):
        failure = _copy_failure(mirror)
        if failure is not None and not was_said:
            said = mask(f"results cannot be copied to {uri} ({failure}); trying on")
            log.warning("%s", said)
            was_said = True


def _end(mirror: Mirror, thread: threading.Thread, is_over: threading.Event) -> OSError | None:
    """Make the last copy; what prevented it."""
    is_over.set()
    thread.join()
    return _copy_failure(mirror)


def _copy_failure(mirror: Mirror) -> OSError | None:
    try:
        mirror.copy()
    except OSError as error:
        return error
    return None


def _listed(folder: Path) -> dict[str, Stamp]:
    """The files of a folder, but those that are being written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if _LEFT_OUT.intersection(name.parts) or is_being_written(name):
            continue
        if path.is_file():
            status = path.stat()
            found[name.as_posix()] = Stamp(status.st_size, status.st_mtime_ns)
    return found


def _link(source: Path, target: Path) -> None:
    """A hard link; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _order(name: str) -> tuple[int, str]:
    """What a checkpoint holds, then what must not be behind it, then what makes it count."""
    path = PurePosixPath(name)
    if path.name == META:
        return 2, name
    return (0 if "checkpoints" in path.parts else 1), name


def _looks_whole(names: Mapping[str, Any]) -> bool:
    """Whether a run's folder has the files of one that is over."""
    return _RESULT in names and _ROUNDS not in names


def _is_whole(files: FileSystem, place: str) -> bool:
    """Whether the run at a path is over, as its files say."""
    from pyarrow.fs import FileType

    names = (_RESULT, _ROUNDS)
    result, rounds = files.get_file_info([str(PurePosixPath(place) / name) for name in names])
    if result.type == FileType.NotFound or rounds.type != FileType.NotFound:
        return False
    try:
        return Run.from_json(json.loads(reader(files, place)(_RESULT) or b"")).is_finished
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _is_in(name: str, entry: str) -> bool:
    return name.partition("/")[0] == entry


def _joined(entry: str, name: str) -> str:
    return f"{entry}/{name}" if name else entry
