"""Exclusive access to a run's folder: it is locked and tested for writing before a run starts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedray.errors import UserError
from fedray.storage.entries import check_entries
from fedray.storage.files import cannot_write, remove_torn, unshare
from fedray.storage.run_folder import RunFolder

LOCK_SECONDS = 20
"""Maximal wait for another process; the actors of a killed run need a few seconds to end."""
_PROBE_BYTES = 2**16


class FolderClaim:
    """A lock on a run's folder; the system releases it when a process is killed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = FileLock(folder.lock, timeout=LOCK_SECONDS)
        self._made: list[Path] = []

    def acquire(self) -> None:
        """Create the folder if missing, lock it, test writing, and remove unfinished files.

        Raises:
            UserError: if the folder cannot be written, a link leads out of it, or another process
                is running in it.
        """
        path = self._folder.path
        try:
            check_entries(path)
            self._make(path)
            unshare(self._folder.lock)
            self._lock.acquire()
            for file in self._folder.written_in_place:
                unshare(file)
            _write_some(path)
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

    def _make(self, path: Path) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self._made.append(folder)
        if not path.is_dir():
            raise NotADirectoryError(None, "it is a file, not a folder")


def is_claimed(folder: RunFolder) -> bool:
    """Return True if a process of this machine is running in the folder."""
    try:
        if not folder.lock.is_file() or folder.lock.stat().st_size:  # locking would empty the file
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


def _write_some(path: Path) -> None:
    probe = path / f".probe.{os.getpid()}.tmp"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)
