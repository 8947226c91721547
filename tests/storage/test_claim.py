"""A folder is claimed by one process, and nothing is left where nothing came of it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from fedray.base.errors import UserError
from fedray.storage import files
from fedray.storage.files import claimed


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_is_made_and_removed_when_nothing_came_of_it(tmp_path):
    out = tmp_path / "a" / "b"
    with claimed(out):
        assert left(out) == {".lock"}
    assert left(tmp_path / "a") == set()


def test_what_was_written_stays_but_for_what_killed_processes_had_begun(tmp_path):
    for name in (".12345.7.tmp.run.json", "mine.tmp", ".hidden", "run.json"):
        (tmp_path / name).write_text("")
    with claimed(tmp_path):
        pass
    assert left(tmp_path) == {".lock", "mine.tmp", ".hidden", "run.json"}


def test_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    with (
        claimed(tmp_path / "out"),
        pytest.raises(UserError, match="another process is running in"),
        claimed(tmp_path / "out"),
    ):
        pass
    with claimed(tmp_path / "out"):
        pass


def test_who_waits_for_a_lock_file_that_is_removed_takes_the_new_one(tmp_path, monkeypatch):
    """Else two processes hold the lock: one that of the removed file, one that of the new file."""
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    flock, opened = fcntl.flock, []

    def removed_before(descriptor, operation):
        if not opened:
            opened.append(descriptor)
            (tmp_path / ".lock").unlink()
        return flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with claimed(tmp_path):
        assert opened
        with pytest.raises(UserError, match="another process is running in"), claimed(tmp_path):
            pass


def a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("mine")
    return tmp_path / "file"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda tmp_path: a_file(tmp_path) / "below", "Not a directory"),
        (lambda tmp_path: Path("/proc/fedray/out"), "No such file or directory"),
        (lambda tmp_path: Path("/sys/kernel"), "Permission denied|Operation not permitted|Read-"),
        (lambda tmp_path: tmp_path / ("x" * 300), "File name too long"),
    ],
    ids=["below a file", "not to be made", "read-only", "too long"],
)
def test_what_cannot_be_written_is_one_sentence(tmp_path, make, reason):
    with (
        pytest.raises(UserError, match=rf"cannot be written \(({reason}).*\); .* --out") as raised,
        claimed(make(tmp_path)),
    ):
        pass
    assert "\n" not in str(raised.value)
