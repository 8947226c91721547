"""A full disk stops a run with one sentence."""

from __future__ import annotations

import errno
import sqlite3

import pytest
import torch

from fedray.errors import RunFailed
from fedray.storage import database
from fedray.storage.database import StateDatabase
from fedray.storage.files import explain_disk_full


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_whatever_says_that_the_disk_is_full_is_one_sentence(tmp_path, error):
    with (
        pytest.raises(RunFailed, match=r"cannot be written.*--resume"),
        explain_disk_full(tmp_path),
    ):
        raise error


def test_a_limit_on_file_sizes_names_itself(tmp_path, monkeypatch):
    """SQLite calls it a disk I/O error."""
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1, -1))
    store = StateDatabase(tmp_path / "states.sqlite")
    monkeypatch.setattr(database, "_begin", fail_like_sqlite)
    with (
        pytest.raises(RunFailed, match=r"\(File too large\); raise the limit .* \(ulimit -f\)"),
        explain_disk_full(tmp_path),
    ):
        store.save({}, [])


def test_a_limit_on_file_sizes_that_safetensors_meets(tmp_path):
    with pytest.raises(RunFailed, match=r"ulimit -f.*--resume"), explain_disk_full(tmp_path):
        raise RuntimeError("I/O error: File too large (os error 27)")


def fail_like_sqlite(file):
    raise sqlite3.OperationalError("disk I/O error")


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(KeyError), explain_disk_full(tmp_path):
        raise KeyError("No space")


def test_a_database_without_room_is_a_full_disk(tmp_path, monkeypatch):
    connect = database._connect

    def small(path, mode):
        file = connect(path, mode)
        file.execute("PRAGMA max_page_count = 4")
        return file

    monkeypatch.setattr(database, "_connect", small)
    with pytest.raises(OSError, match=r"No space left on device \(database or disk is full\)"):
        StateDatabase(tmp_path).save({}, [(0, {"w": torch.zeros(20_000)})])
