"""Results at a URI: a folder of this node, copied there again and again, and fetched from there.

FEDRAY_RESULTS=s3://bucket/results, gs://..., hdfs://..., file:///...: what pyarrow's file systems
know. What is computed is written to this node's disk as always; a copy is behind it by a few
seconds, and never torn: whatever a checkpoint names is there before its meta.json, and what it
replaces goes after it. So a run or sweep whose machine is lost goes on from the copy.

The copy of a run, a sweep or a table is one invocation's alone: what a folder holds is compared
with it first, and nothing goes where another's is. The runs of tables lie in a store to which
several machines copy: there each touches only the runs that it has changed itself.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from fedray.config import load_experiment, parse_yaml
from fedray.errors import RunFailed, UserError
from fedray.files import LOCK, is_temporary, results_home, results_uri
from fedray.masking import mask
from fedray.records import Run

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)
T = TypeVar("T")

EVERY_SECONDS = 10.0
META = "meta.json"
_LEFT_OUT = {LOCK, "tune"}
"""What only the living processes of a node need."""
_TRIES = 5
_PART = 2**24
"""Bytes of a file that are held at once."""


_FACTS = {
    "result.json": ("identity",),
    "sweep.json": ("sweep", "began"),
    "plan.json": ("table", "began"),
}
"""The files that say whose a folder is, and by which of their entries."""
_CONFIG, _RESULT, _ROUNDS = "config.yaml", "result.json", "rounds.jsonl"
BEGUN = (*_FACTS, _CONFIG)
"""A folder with one of these holds a run, a sweep or a table; they are fetched last."""
_SEED = re.compile(r"seed_\d+")
Read = Callable[[str], bytes | None]
"""Reads a file of a folder, here or there; None where there is none."""


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
        self._files, root = _file_system(uri)
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
        _refuse_anothers(self._folder, self._uri, _reader(self._files, place))
        names = _files_at(self._files, place)
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
        for _ in range(_TRIES):  # a checkpoint may be replaced meanwhile
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
            shutil.copyfileobj(content, stream, _PART)
        if self._has_folders:
            self._files.move(str(begun), str(place))


class SharedMirror(Mirror):
    """Copies of the entries of a folder, at a URI to which other machines copy theirs.

    An entry is a run in a folder that is called after what determines its numbers. It is copied
    once something of it is new here; then it is this process's, unless it is whole there.
    """

    def _copied_before(self) -> list[str]:
        there = _by_entry(_files_at(self._files, str(self._place)))
        here = _by_entry(_listed(self._folder))
        self._ours: set[str] = set()
        self._others: set[str] = set()
        self._before = {
            entry: stamps
            for entry, stamps in here.items()
            if entry in there and not (_looks_whole(stamps) and not _looks_whole(there[entry]))
        }
        return []

    def _now(self) -> Mapping[str, Stamp]:
        found = _by_entry(_listed(self._folder))
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
            left = _files_at(self._files, place) if (self._folder / entry).is_dir() else {}
            whole = [name for name in left if not _is_temporary(name)]  # the others may come yet
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


def fetch_missing(folder: Path) -> None:
    """Fetch from $FEDRAY_RESULTS, where that is a URI, what a folder lacks.

    What holds a run, a sweep or a table here stays as it is. Any other folder is filled: each file
    and folder in it that is not here is fetched whole.

    Raises:
        UserError: when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None or is_begun(folder):
        return
    files, root = _file_system(uri)
    with _reading(uri):
        for _ in range(_TRIES):  # who copies there may replace a checkpoint meanwhile
            with suppress(FileNotFoundError):
                _fetch(files, _whole(_files_at(files, root)), folder)
                return
        raise OSError("it changed again and again while it was read")


def check_free(folder: Path, go_on: str = "--resume") -> None:
    """Refuse a folder for something new whose copy at $FEDRAY_RESULTS holds something.

    Args:
        folder: what is going to be copied.
        go_on: what goes on with what is there.

    Raises:
        UserError: with the URI, or when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None:
        return
    with _reading(uri):
        _refuse_anything(uri, _reader(*_file_system(uri)), go_on)


def check_same(folder: Path) -> None:
    """Refuse to go on in a folder whose copy at $FEDRAY_RESULTS is of something else.

    Raises:
        UserError: with the URI, or when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None:
        return
    with _reading(uri):
        _refuse_anothers(folder, uri, _reader(*_file_system(uri)))


def is_begun(folder: Path) -> bool:
    """Whether a folder holds a run, a sweep or a table."""
    return any((folder / name).is_file() for name in BEGUN)


def uri_of(folder: Path) -> str | None:
    """Where the copy of a folder of results is; None where FEDRAY_RESULTS is no URI."""
    uri = results_uri()
    if uri is None:
        return None
    home, folder = results_home(), folder.resolve()
    name = Path(folder.name)
    if folder.is_relative_to(home):
        name = folder.relative_to(home)
    elif _SEED.fullmatch(folder.name):  # every experiment has them
        name = Path(folder.parent.name, folder.name)
    return f"{uri.rstrip('/')}/{name.as_posix()}"


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


def _file_system(uri: str) -> tuple[FileSystem, str]:
    """The file system of a URI, and the path there.

    Raises:
        UserError: when there is none.
    """
    import pyarrow
    from pyarrow.fs import FileSystem

    try:
        found: tuple[Any, str] = FileSystem.from_uri(uri)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(
            mask(
                f"FEDRAY_RESULTS: {uri} cannot be used ({error}); give a folder, or a URI such as "
                "s3://bucket/results"
            )
        ) from None
    return found


def _files_at(files: FileSystem, root: str) -> dict[str, str]:
    """The files below a path: their names from there, and their paths."""
    from pyarrow.fs import FileSelector, FileType

    found = files.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    paths = [each.path for each in found if each.type == FileType.File]
    return {str(PurePosixPath(path).relative_to(root)): path for path in paths}


def _listed(folder: Path) -> dict[str, Stamp]:
    """The files of a folder, but those that are being written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if _LEFT_OUT.intersection(name.parts) or _is_temporary(name):
            continue
        if path.is_file():
            status = path.stat()
            found[name.as_posix()] = Stamp(status.st_size, status.st_mtime_ns)
    return found


def _is_temporary(name: str | PurePath) -> bool:
    """Whether it, or a folder that it is in, is still being written."""
    return any(map(is_temporary, PurePath(name).parts))


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


def _whole(names: Mapping[str, str]) -> dict[str, str]:
    """The files without those of checkpoints whose meta.json never came, and those half-written."""
    rounds = {n: PurePosixPath(n).parent for n in names if "checkpoints/round_" in f"/{n}"}
    return {
        name: names[name]
        for name in sorted(names)
        if (name not in rounds or str(rounds[name] / META) in names) and not _is_temporary(name)
    }


# --- fetching ------------------------------------------------------------------------------------


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(mask(f"FEDRAY_RESULTS: {uri} cannot be read ({error})")) from None


def _fetch(files: FileSystem, names: Mapping[str, str], place: Path) -> None:
    """Fetch what is not at a place: as a whole, or, of a folder in which nothing began, by entry.

    Args:
        files: where from.
        names: of the files below the place, with their paths there; of a file, "".
        place: where to.
    """
    if not place.exists():
        _fetch_whole(files, names, place)
    elif place.is_dir() and not is_begun(place):
        entries = _by_entry(names)
        for entry in sorted(entries, key=lambda entry: (entry in BEGUN, entry == _CONFIG, entry)):
            _fetch(files, entries[entry], place / entry)


def _fetch_whole(files: FileSystem, names: Mapping[str, str], place: Path) -> None:
    begun = place.with_name(f".{os.getpid()}.tmp.{place.name}")
    try:
        for name, path in names.items():
            target = begun / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with files.open_input_stream(path) as stream, target.open("wb") as file:
                shutil.copyfileobj(stream, file, _PART)
        if begun.exists():
            _rename(begun, place)
    finally:
        if begun.is_dir():
            shutil.rmtree(begun, ignore_errors=True)
        begun.unlink(missing_ok=True)


def _rename(begun: Path, place: Path) -> None:
    """Give what was fetched its name, unless another process was faster."""
    try:
        os.rename(begun, place)
    except OSError:
        if not place.exists():
            raise


def _by_entry(names: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """What is below each file and folder of a folder, by its name from there; of a file, ""."""
    found: dict[str, dict[str, T]] = {}
    for name, what in names.items():
        entry, _, rest = name.partition("/")
        found.setdefault(entry, {})[rest] = what
    return found


def _is_in(name: str, entry: str) -> bool:
    return name.partition("/")[0] == entry


def _joined(entry: str, name: str) -> str:
    return f"{entry}/{name}" if name else entry


# --- whose it is ---------------------------------------------------------------------------------


def _reader(files: FileSystem, root: str) -> Read:
    """Reads the files at a path."""

    def read(name: str) -> bytes | None:
        try:
            with files.open_input_stream(str(PurePosixPath(root) / name)) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    return read


def _refuse_anything(uri: str, there: Read, go_on: str = "--resume") -> None:
    """Refuse a URI at which something was begun.

    Raises:
        UserError: with what to do.
    """
    found = next((name for name in BEGUN if there(name) is not None), None)
    if found is not None:
        what = {"sweep.json": "a sweep", "plan.json": "a table"}.get(found, "a run")
        raise UserError(
            mask(
                f"FEDRAY_RESULTS: {uri} already holds {what}; go on with {go_on}, or name a folder "
                "that is called otherwise"
            )
        )


def _refuse_anothers(folder: Path, uri: str, there: Read) -> None:
    """Refuse a URI at which something else was begun than in a folder.

    Raises:
        UserError: with what to do.
    """
    if not is_begun(folder):
        _refuse_anything(uri, there)
    elif _is_anothers(_local(folder), there):
        raise UserError(
            mask(
                f"FEDRAY_RESULTS: {uri} holds another experiment than {folder}, which would "
                "replace it; give the folder another name, or FEDRAY_RESULTS another URI"
            )
        )


def _local(folder: Path) -> Read:
    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None

    return read


def _is_anothers(here: Read, there: Read) -> bool:
    """Whether what is there is of another invocation than what is here."""
    for name, keys in _FACTS.items():
        ours, theirs = here(name), there(name)
        if ours is not None and theirs is not None:
            return _facts(ours, keys) != _facts(theirs, keys)
    if all(there(name) is None for name in BEGUN):
        return False
    ours, theirs = here(_CONFIG), there(_CONFIG)
    if ours is None or theirs is None:
        return True
    return ours != theirs and _identity(ours) != _identity(theirs)


def _facts(content: bytes, keys: tuple[str, ...]) -> list[Any]:
    """What a file says of whose it is; nothing that equals another's where it is damaged."""
    try:
        tree = json.loads(content)
        return [tree[key] for key in keys]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [object()]


def _identity(config: bytes) -> object:
    """Of the experiment in a config.yaml; of one that cannot be read none that another has."""
    try:
        return load_experiment(parse_yaml(config.decode(), _CONFIG)).identity()
    except (UserError, UnicodeDecodeError, TypeError, AttributeError):
        return object()


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
        return Run.from_json(json.loads(_reader(files, place)(_RESULT) or b"")).is_finished
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
