"""A run's folder is claimed and proved writable, and nothing is left where nothing came of it."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from fedray.errors import UserError
from fedray.storage import claim
from fedray.storage.claim import FolderClaim, prove_writable
from fedray.storage.run_folder import RunFolder


def test_a_folder_is_made_and_removed_when_nothing_came_of_it(tmp_path):
    out = tmp_path / "a" / "b" / "c"
    held = FolderClaim(RunFolder(out))
    held.acquire()
    assert [path.name for path in out.iterdir()] == [".lock"]
    held.release()
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_and_what_was_written_stays(tmp_path):
    (tmp_path / "there").mkdir()
    prove_writable(RunFolder(tmp_path / "there"))
    assert [path.name for path in (tmp_path / "there").iterdir()] == [".lock"]
    held = FolderClaim(RunFolder(tmp_path / "new"))
    held.acquire()
    (tmp_path / "new" / "config.yaml").write_text("seed: 0")
    held.release()
    assert (tmp_path / "new" / "config.yaml").exists()


def test_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "LOCK_SECONDS", 0.1)
    first = FolderClaim(RunFolder(tmp_path / "out"))
    first.acquire()
    with pytest.raises(UserError, match="another process is running in"):
        prove_writable(RunFolder(tmp_path / "out"))
    first.release()
    prove_writable(RunFolder(tmp_path / "out"))


def test_a_lock_that_another_process_holds_is_never_removed(tmp_path, monkeypatch):
    first = FolderClaim(RunFolder(tmp_path / "out"))
    first.acquire()
    second = FolderClaim(RunFolder(tmp_path / "out"))

    def fail(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(second._lock, "acquire", fail)
    with pytest.raises(UserError, match="Permission denied"):
        second.acquire()
    second.release()
    assert first._folder.lock.exists()
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_who_waits_for_a_lock_file_that_is_removed_takes_the_new_one(tmp_path, monkeypatch):
    """Else two processes hold the lock: one that of the removed file, one that of the new file."""
    monkeypatch.setattr(claim, "LOCK_SECONDS", 0.1)
    (tmp_path / "out").mkdir()
    lock, flock, opened = tmp_path / "out" / ".lock", fcntl.flock, []

    def removed_before(descriptor, operation):
        if not opened:
            opened.append(descriptor)
            lock.unlink()
        return flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    waited = FolderClaim(RunFolder(tmp_path / "out"))
    waited.acquire()
    assert opened
    with pytest.raises(UserError, match="another process is running in"):
        prove_writable(RunFolder(tmp_path / "out"))
    waited.release()


def a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("mine")
    return tmp_path / "file"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_file, "File exists|Not a directory"),
        (lambda tmp_path: a_file(tmp_path) / "below", "Not a directory"),
        (lambda tmp_path: Path("/proc/fedray/out"), "No such file or directory"),
        (lambda tmp_path: Path("/sys/kernel"), "Permission denied|Operation not permitted|Read-"),
        (lambda tmp_path: tmp_path / ("x" * 300), "File name too long"),
    ],
    ids=["a file", "below a file", "not to be made", "read-only", "too long"],
)
def test_what_cannot_be_written_is_one_sentence(tmp_path, make, reason):
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match=rf"cannot be written \(({reason}).*\); .* --out") as raised:
        prove_writable(RunFolder(make(tmp_path)))
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "file") == before


def test_what_killed_processes_had_begun_to_write_is_removed(tmp_path):
    stale = [".result.json.12345.tmp", ".12345.tmp.result.json"]
    for name in [*stale, "mine.tmp", ".hidden", "result.json"]:
        (tmp_path / name).write_text("")
    prove_writable(RunFolder(tmp_path))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left - {".lock"} == {"mine.tmp", ".hidden", "result.json"}
