"""The node's cache of arrays: made once, stored on disk, mapped by all processes.

It holds decoded images, frozen features, tokens, text embeddings and converted weights, below
`fedray.storage.files.cache_folder`, which may be deleted whenever no run is active.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from fedray.base.errors import UserError
from fedray.storage.files import cache_folder, read_json, sync, write_json

_log = logging.getLogger(__name__)

_META = "meta.json"


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
        with _writing(self.what):
            np.save(self.folder / f"{name}.npy", array, allow_pickle=False)
        self.arrays[name] = array

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array that maps its file, so that it need not fit into memory.

        A second call with the same name discards the first array.
        """
        path, size = self.folder / f"{name}.npy", math.prod(shape) * np.dtype(dtype).itemsize
        path.unlink(missing_ok=True)  # an earlier attempt may still be mapped
        if size == 0:  # an empty file cannot be mapped
            self.save(name, np.empty(shape, dtype))
            return self.arrays[name]
        with _writing(self.what):
            if size > shutil.disk_usage(self.folder).free:
                # writing to a mapped file on a full disk would kill the process
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.arrays[name] = open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
        return self.arrays[name]


def content_key(*parts: Any) -> str:
    """Return a hash of JSON values, 32 hex digits."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def kept_arrays(kind: str, name: str, what: str, make: Callable[[Arrays], None]) -> Arrays:
    """Return arrays from the cache; the first process of a node that needs them makes them.

    A folder is renamed to its final name once all files are on disk, so that readers never see an
    incomplete one; other processes wait at a lock while one makes it.

    Args:
        kind: a folder below the cache, such as "images".
        name: the folder's name, a hash of all that the arrays depend on (see `content_key`).
        what: a plural noun for messages, such as "decoded images".
        make: writes the arrays; called at most once.

    Raises:
        UserError: if the arrays are missing and cannot be written. Other errors of `make` pass.
    """
    folder = cache_folder() / kind / name
    if (kept := _mapped(folder, what)) is not None:
        return kept
    with ExitStack() as lock:
        with _writing(what):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock.enter_context(FileLock(f"{folder}.lock"))
        if (kept := _mapped(folder, what)) is None:  # else another process has made it
            _log.info("making the %s once in %s", what, folder)
            _make(folder, what, make)
            kept = _mapped(folder, what)
    assert kept is not None
    return kept


@contextmanager
def _writing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{what} cannot be written below {cache_folder()} ({error.strerror or error}); free "
            "some space, or set FEDRAY_CACHE to another folder"
        ) from None


def _mapped(folder: Path, what: str) -> Arrays | None:
    """Map the arrays of a folder; return None if it has not been made, or an array is cut."""
    try:
        meta = read_json(folder / _META)
        files = {name: folder / f"{name}.npy" for name in meta["arrays"]}
        arrays = {n: np.load(file, mmap_mode="r", allow_pickle=False) for n, file in files.items()}
        return Arrays(folder, what, arrays, meta["content"])
    except (UserError, OSError, EOFError, LookupError, TypeError, ValueError):
        return None


def _make(folder: Path, what: str, make: Callable[[Arrays], None]) -> None:
    temporary = folder.with_name(f"{folder.name}.tmp")  # the lock is held
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    try:
        with _writing(what):
            temporary.mkdir()
        making = Arrays(temporary, what)
        make(making)
        with _writing(what):
            for path in temporary.iterdir():
                sync(path)
            write_json(temporary / _META, {"content": making.content, "arrays": [*making.arrays]})
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
