"""The node's cache of arrays: made once, stored on disk, verified on opening, mapped by processes.

It holds decoded images, frozen features, tokens, text embeddings and converted weights, below
`fedray.storage.files.cache_folder`, which may be deleted whenever no run is active.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from fedray.errors import UserError
from fedray.storage.files import cache_folder, file_checksum, node_lock, remedy_of, write_json
from fedray.storage.json_files import read_checked, sealed
from fedray.units import size_of

_log = logging.getLogger(__name__)

_META = "meta.json"
ANNOUNCED_BYTES = 5_000_000_000
"""A cache that will be larger is announced."""
LARGE_BYTES = 1_000_000_000
"""Larger arrays are announced in every cache that is above `ANNOUNCED_BYTES`."""


class CacheUnwritable(UserError):
    """The cache lacks the requested arrays and cannot be written."""


@dataclass
class Arrays:
    """The arrays of one folder of the cache.

    While the folder is made, each array is written once: by `save`, or into the array that
    `allocate` returns. Afterwards `arrays` maps the files read-only.

    Attributes:
        folder: the folder; it holds each array as NAME.npy, and perhaps other files.
        what: a plural noun for messages.
        arrays: the arrays by name, as written or mapped.
        content: further JSON values, stored with the arrays.
    """

    folder: Path
    what: str
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)

    def save(self, name: str, array: NDArray[Any]) -> None:
        """Write an array."""
        try:
            with (self.folder / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self.what, error) from None
        self.arrays[name] = array

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array that maps its file, so that it need not fit into memory.

        A second call with the same name discards the first array.
        """
        path = self.folder / f"{name}.npy"
        self._check_space(math.prod(shape) * np.dtype(dtype).itemsize)
        try:
            path.unlink(missing_ok=True)  # an earlier attempt may still be mapped
            if 0 in shape:  # an empty file cannot be mapped
                np.save(path, np.empty(shape, dtype))
                return np.empty(shape, dtype)
            array = open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
            if hasattr(os, "posix_fallocate"):  # else a write to a full disk kills the process
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise _unwritable(self.what, error) from None
        self.arrays[name] = array
        return array

    def _check_space(self, size: int) -> None:
        """Check the disk before an array is made; announce a cache that becomes large."""
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise CacheUnwritable(
                f"the {self.what} need {size_of(size)}, but only {size_of(free)} are free below "
                f"{cache_folder()}; free some space, or set FEDRAY_CACHE to another folder"
            )
        before = cache_bytes()
        if before + size > ANNOUNCED_BYTES and (size > LARGE_BYTES or before <= ANNOUNCED_BYTES):
            _log.warning(
                "the %s take %s, so that %s will hold %s (%s are free); it may be deleted whenever "
                "nothing runs, and FEDRAY_CACHE names another folder",
                self.what,
                size_of(size),
                cache_folder(),
                size_of(before + size),
                size_of(free),
            )


def cache_bytes() -> int:
    """Return the size of this node's cache."""
    total = 0
    for folder, _, files in os.walk(cache_folder()):
        for name in files:
            with suppress(OSError):  # another process may remove it
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def content_key(*parts: Any) -> str:
    """Return a hash of JSON values, 32 hex digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def kept_arrays(kind: str, name: str, what: str, make: Callable[[Arrays], None]) -> Arrays:
    """Return arrays from the cache; the first process of a node that needs them makes them.

    A folder is renamed to its final name once all files are on disk, so that readers never see an
    incomplete one; other processes wait at a lock while one makes it. The size and the SHA-256 of
    every file are verified (0.6 s per GB). A damaged folder is made again, with a warning.

    Args:
        kind: a folder below the cache, such as "images".
        name: the folder's name, a hash of all that the arrays depend on (see `content_key`).
        what: a plural noun for messages, such as "decoded images".
        make: writes the arrays; called at most once.

    Raises:
        CacheUnwritable: if the arrays are missing and cannot be written. Errors of `make` pass
            through.
    """
    folder = cache_folder() / kind / name
    with suppress(_Damaged):
        return _verified(folder, what)
    with ExitStack() as lock:
        try:
            lock.enter_context(node_lock(folder))
        except OSError as error:
            raise _unwritable(what, error) from None
        try:
            return _verified(folder, what)  # another process has made it
        except _Damaged as damage:
            if folder.exists():
                _log.warning(
                    "the %s in %s are damaged: %s; making them again", what, folder, damage
                )
        _log.info("making the %s once in %s", what, folder)
        _make(folder, what, make)
        return _mapped(folder, what, _read_meta(folder)["content"])


class _Damaged(Exception):
    """A file of a folder is missing or has changed since it was written."""


def _verified(folder: Path, what: str) -> Arrays:
    """Verify all files of a folder and map the arrays; raise `_Damaged` if one has changed."""
    meta = _read_meta(folder)
    for name, (size, digest) in meta["files"].items():
        path = folder / name
        try:
            is_whole = path.stat().st_size == size and file_checksum(path) == digest
        except OSError as error:
            raise _Damaged(f"{name} cannot be read: {error.strerror or error}") from None
        if not is_whole:
            raise _Damaged(f"{name} is not as it was written")
    return _mapped(folder, what, meta["content"])


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        return read_checked(folder / _META)
    except UserError:
        raise _Damaged(f"{_META} is missing or not as it was written") from None


def _make(folder: Path, what: str, make: Callable[[Arrays], None]) -> None:
    try:
        for torn in folder.parent.glob(f"{folder.name}.tmp-*"):  # left by killed processes
            shutil.rmtree(torn, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    except OSError as error:
        raise _unwritable(what, error) from None
    try:
        making = Arrays(temporary, what)
        make(making)
        _publish(making, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _publish(making: Arrays, folder: Path) -> None:
    try:
        for array in making.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()
        files = {
            path.name: (path.stat().st_size, file_checksum(path))
            for path in making.folder.iterdir()
        }
        write_json(making.folder / _META, sealed({"content": making.content, "files": files}))
        making.folder.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        making.folder.rename(folder)
    except OSError as error:
        raise _unwritable(making.what, error) from None


def _mapped(folder: Path, what: str, content: dict[str, Any]) -> Arrays:
    files = sorted(folder.glob("*.npy"))
    arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in files}
    return Arrays(folder, what, arrays, content)


def _unwritable(what: str, error: OSError) -> CacheUnwritable:
    return CacheUnwritable(
        f"{what} cannot be written below {cache_folder()} ({error.strerror or error}); "
        f"{remedy_of(error)}, or set FEDRAY_CACHE to another folder"
    )
