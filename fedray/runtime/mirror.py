"""Results at a URI: a folder of this node, copied there again and again, and fetched from there.

FEDRAY_RESULTS=s3://bucket/results, gs://..., hdfs://..., file:///...: what pyarrow's file systems
know. What is computed is written to this node's disk as always; a copy is behind it by a few
seconds, and never torn: whatever a checkpoint names is there before its meta.json, and what it
replaces goes after it. So a run or sweep whose machine is lost goes on from the copy.
"""

from __future__ import annotations

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
from fedray.files import is_temporary, results_home, results_uri

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
META = "meta.json"
_LEFT_OUT = {".lock", "tune"}
"""What only the living processes of a node need."""
_TRIES = 5
_PART = 2**24
"""Bytes of a file that are held at once."""


class Stamp(NamedTuple):
    """What tells whether a file was changed."""

    size: int
    changed: int


UNKNOWN = Stamp(-1, -1)
"""Of what an earlier process copied."""


class Mirror:
    """A copy of a folder at a URI.

    Args:
        folder: what is copied; it need not exist.
        uri: where to.

    Raises:
        UserError: when nothing can be written there.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        from pyarrow.fs import HadoopFileSystem, LocalFileSystem

        self._folder = folder
        self._uri = uri
        self._files, root = _file_system(uri)
        self._place = PurePosixPath(root)
        self._has_folders = isinstance(self._files, HadoopFileSystem | LocalFileSystem)
        try:
            self._files.create_dir(str(self._place), recursive=True)
            self._write(BytesIO(), ".probe")
            self._files.delete_file(str(self._place / ".probe"))
            self._copied = dict.fromkeys(_files_at(self._files, root), UNKNOWN)
        except OSError as error:
            raise UserError(
                f"FEDRAY_RESULTS: {uri} cannot be written ({error}); give a URI with the rights "
                "to write there, or a folder"
            ) from None

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
            now = _listed(self._folder)
            for name, stamp in now.items():
                if self._copied.get(name) != stamp:
                    (held / name).parent.mkdir(parents=True, exist_ok=True)
                    _link(self._folder / name, held / name)
        except FileNotFoundError:
            return None
        return now

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


@contextmanager
def mirrored(folder: Path) -> Iterator[None]:
    """Copy a folder to $FEDRAY_RESULTS every few seconds, and at the end, where that is a URI.

    Raises:
        UserError: when nothing can be written there.
        RunFailed: when the last copy could not be made.
    """
    uri = uri_of(folder)
    if uri is None:
        yield
        return
    mirror, is_over = Mirror(folder, uri), threading.Event()
    thread = threading.Thread(target=_keep_copying, args=(mirror, is_over, uri), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        _end(mirror, thread, is_over)  # what stopped it is more important
        raise
    failure = _end(mirror, thread, is_over)
    if failure is not None:
        raise RunFailed(f"{folder} could not be copied to {uri} ({failure}); it is whole here")


def fetch_missing(folder: Path) -> None:
    """Fetch a folder from $FEDRAY_RESULTS, where that is a URI and the folder is not here.

    Raises:
        UserError: when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None or folder.exists():
        return
    files, root = _file_system(uri)
    begun = folder.with_name(f".{os.getpid()}.tmp.{folder.name}")
    try:
        names = _files_at(files, root)
        for name in _whole(names):
            (begun / name).parent.mkdir(parents=True, exist_ok=True)
            with files.open_input_stream(names[name]) as stream, (begun / name).open("wb") as file:
                shutil.copyfileobj(stream, file, _PART)
        if begun.exists():
            os.rename(begun, folder)
    except OSError as error:
        raise UserError(f"FEDRAY_RESULTS: {uri} cannot be read ({error})") from None
    finally:
        shutil.rmtree(begun, ignore_errors=True)


def uri_of(folder: Path) -> str | None:
    """Where the copy of a folder of results is; None where FEDRAY_RESULTS is no URI."""
    uri = results_uri()
    if uri is None:
        return None
    home = results_home()
    inside = folder.resolve().is_relative_to(home)
    name = folder.resolve().relative_to(home) if inside else Path(folder.name)
    return f"{uri.rstrip('/')}/{name.as_posix()}"


def _keep_copying(mirror: Mirror, is_over: threading.Event, uri: str) -> None:
    was_said = False
    while not is_over.wait(EVERY_SECONDS):
        failure = _copy_failure(mirror)
        if failure is not None and not was_said:
            log.warning("results cannot be copied to %s (%s); trying on", uri, failure)
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
            f"FEDRAY_RESULTS: {uri} cannot be used ({error}); give a folder, or a URI such as "
            "s3://bucket/results"
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
        if _LEFT_OUT.intersection(name.parts) or any(map(is_temporary, name.parts)):
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


def _whole(names: Mapping[str, str]) -> list[str]:
    """The files without those of checkpoints whose meta.json never came."""
    rounds = {n: PurePosixPath(n).parent for n in names if "checkpoints/round_" in f"/{n}"}
    return [n for n in sorted(names) if n not in rounds or str(rounds[n] / META) in names]
