"""Arrays that are made once per node, kept on disk, checked when opened, and mapped by processes.

Decoded images, frozen features, tokens, text embeddings and converted weights are kept this way,
below `fedray.files.cache_folder`, which may be removed at any time between runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from fedray.errors import UserError
from fedray.files import cache_folder, node_lock
from fedray.integrity import Damaged, check, read_meta, seal, stamp, was_checked

_log = logging.getLogger(__name__)


class CacheUnwritable(UserError):
    """The cache cannot be written, and what is asked for is not in it."""


@dataclass
class Arrays:
    """The arrays of one folder of the cache.

    While they are made, each is written once, by `save` or into what `allocate` returns. Afterwards
    `arrays` maps them read-only.

    Attributes:
        folder: holds each array as NAME.npy, and perhaps other files.
        what: a plural noun for messages.
        arrays: each array by its name, as written or mapped.
        content: what else is kept, as JSON.
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

        A second call for the same name begins again.
        """
        path = self.folder / f"{name}.npy"
        try:
            path.unlink(missing_ok=True)  # an earlier attempt may still be mapped
            if 0 in shape:  # an empty file cannot be mapped
                np.save(path, np.empty(shape, dtype))
                return np.empty(shape, dtype)
            array = open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
            if hasattr(os, "posix_fallocate"):  # else a full disk kills the process that writes
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise _unwritable(self.what, error) from None
        self.arrays[name] = array
        return array


def content_key(*parts: Any) -> str:
    """Return 32 hex digits that name JSON values by their content."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def kept_arrays(kind: str, name: str, what: str, make: Callable[[Arrays], None]) -> Arrays:
    """Return arrays out of the cache; the first process of a node that asks makes them for all.

    A folder appears by one rename after all of it is on disk, so that a torn one is never read; a
    lock lets other processes wait for the one that makes or checks it. Every byte is checked,
    unless a process of this node did so in the last minutes and no file was changed since. A
    damaged folder is made again, with a warning.

    Args:
        kind: the folder below the cache: "images".
        name: names what is made by everything that it depends on (see `content_key`).
        what: a plural noun for messages: "decoded images".
        make: writes the arrays; called at most once.

    Raises:
        CacheUnwritable: if they have to be made and cannot be written; or what `make` raises.
    """
    folder = cache_folder() / kind / name
    kept = _trusted(folder, what)
    if kept is not None:
        return kept
    with ExitStack() as lock:
        try:
            lock.enter_context(node_lock(folder))
        except OSError as error:
            kept = _checked(folder, what)
            if kept is None:
                raise _unwritable(what, error) from None
            return kept
        return _trusted(folder, what) or _renewed(folder, what, make)


def _trusted(folder: Path, what: str) -> Arrays | None:
    """Map arrays that a process has just checked; None if there are none."""
    if not was_checked(folder):
        return None
    try:
        kept = _mapped(folder, what, read_meta(folder))
    except (Damaged, OSError, ValueError):
        return None
    return kept if was_checked(folder) else None  # not replaced meanwhile


def _checked(folder: Path, what: str) -> Arrays | None:
    """Read every byte, and map the arrays; None if there are none, or if they are damaged."""
    if not folder.exists():
        return None
    try:
        return _mapped(folder, what, check(folder))
    except Damaged as damage:
        _log.warning("the %s in %s are damaged: %s; making them again", what, folder, damage)
        return None


def _renewed(folder: Path, what: str, make: Callable[[Arrays], None]) -> Arrays:
    """Check the arrays, or make them; the caller holds the lock."""
    kept = _checked(folder, what)
    if kept is None:
        _log.info("making the %s once in %s", what, folder)
        _make(folder, what, make)
        kept = _mapped(folder, what, read_meta(folder))
    stamp(folder)
    return kept


def _make(folder: Path, what: str, make: Callable[[Arrays], None]) -> None:
    try:
        for left in folder.parent.glob(f"{folder.name}.tmp-*"):  # by processes that were killed
            shutil.rmtree(left, ignore_errors=True)
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
        seal(making.folder, making.content)
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
        f"{what} cannot be written below {cache_folder()} ({error.strerror or error}); set "
        "FEDRAY_CACHE to a folder with free space that can be written"
    )
