"""Exclusive access to the folder of a run or study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedray.base.errors import UserError
from fedray.storage.files import LOCK, remove_torn

LOCK_SECONDS = 20
"""Maximal wait for another process; the actors of a killed run need a few seconds to end."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Create a folder if it is missing, lock it, and remove unfinished files.

    At the end the folder is removed if nothing but the lock is in it. A process that waits for the
    lock notices that its file is gone and opens a new one (guaranteed by filelock). The system
    releases the lock of a killed process.

    Raises:
        UserError: if the folder cannot be written, or another process is running in it.
    """
    lock = FileLock(folder / LOCK, timeout=LOCK_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        remove_torn(folder)
    except Timeout:
        raise UserError(
            f"another process is running in {folder}; wait for its end, or choose another folder "
            "with --out"
        ) from None
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be written ({error.strerror or error}); choose another "
            "folder with --out"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):
            if [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()
        lock.release(force=True)


def is_claimed(folder: Path) -> bool:
    """Return True if a process of this machine is running in a folder."""
    try:
        if not (folder / LOCK).is_file():  # locking would create it
            return False
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # no permission to write
        return False
