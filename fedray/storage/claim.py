"""Exclusive access to a run's folder: it is locked and tested for writing before a run starts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedray.errors import UserError
from fedray.storage.files import cannot_write, remove_torn
from fedray.storage.run_folder import RunFolder

LOCK_SECONDS = 20
"""Maximal wait for another process; the actors of a killed run need a few seconds to end."""


class FolderClaim:
    """A lock on a run's folder; the system releases it when a process is killed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = FileLock(folder.lock, timeout=LOCK_SECONDS)
        self._made: list[Path] = []

    def acquire(self) -> None:
        """Create the folder if missing, lock it, and remove unfinished files.

        Raises:
            UserError: if the folder cannot be written, or another process is running in it.
        """
        path = self._folder.path
        try:
            missing = [folder for folder in (path, *path.parents) if not folder.exists()]
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
                self._made.append(folder)
            self._lock.acquire()
            remove_torn(path)
        except Timeout:
            raise UserError(
                f"another process is running in {path}; wait for its end, or choose another folder "
                "with --out"
            ) from None
        except OSError as error:
            self.release()
            raise cannot_write(path, error) from None

    def release(self) -> None:
        """Unlock the folder, and remove folders that this claim created and that are still empty.

        The lock file is only removed together with such a folder. A process that waits for the
        lock notices that its file is gone and opens a new one (guaranteed by filelock).
        """
        path, lock = self._folder.path, self._folder.lock
        with suppress(OSError):
            if path in self._made and self._lock.is_locked and list(path.iterdir()) == [lock]:
                lock.unlink()
        with suppress(OSError):  # folders with other content are kept
            for made in reversed(self._made):
                made.rmdir()
        self._made.clear()
        self._lock.release(force=True)


def is_claimed(folder: RunFolder) -> bool:
    """Return True if a process of this machine is running in the folder."""
    try:
        if not folder.lock.is_file():  # locking would create it
            return False
        with FileLock(folder.lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # no permission to write
        return False


def prove_writable(folder: RunFolder) -> None:
    """Raise `UserError` if a run's folder cannot be written; leave no files behind."""
    claim = FolderClaim(folder)
    claim.acquire()
    claim.release()
