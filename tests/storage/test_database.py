"""The database: one moment, replaced whole; whatever is damaged is refused with its name."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedray.errors import UserError
from fedray.storage import database
from fedray.storage.database import StateDatabase
from fedray.storage.tensors import LARGE, tree_bytes


def tree(value: float, numbers: int = 6) -> dict[str, Any]:
    return {"w": torch.full((numbers,), float(value))}


def save(store: StateDatabase, trees: Mapping[int, Any], **facts: Any) -> None:
    store.places.update(store.save(facts, trees.items()).places)


def content(folder: Path) -> tuple[dict[str, Any] | None, dict[int, float]]:
    """The facts and each tree's first number, as another process reads them."""
    store = StateDatabase(folder)
    facts = store.load()
    found = {number: float(store.read(number)["w"][0]) for number in sorted(store.places)}
    store.close()
    return facts, found


@pytest.fixture
def store(tmp_path):
    return StateDatabase(tmp_path)


@pytest.fixture
def saved(store):
    save(store, {0: tree(0), 1: tree(1), 7: tree(7, LARGE)}, round=3)
    return store


def refused(folder: Path, name: str, reason: str = "") -> None:
    """The database is not read, and one sentence says why."""
    with pytest.raises(UserError, match=rf"{name} is damaged \(.*{reason}.*\); restore") as raised:
        content(folder)
    assert "\n" not in str(raised.value)


def test_a_missing_or_empty_one_holds_nothing(store, tmp_path):
    assert store.load() is None
    store.path.touch()
    assert store.load() is None


def test_each_save_replaces_what_it_names_and_keeps_the_rest(saved, tmp_path):
    save(saved, {1: tree(1.5), 2: tree(2)}, round=4)
    facts, trees = content(tmp_path)
    assert facts == {"round": 4, "trees": 4}
    assert trees == {0: 0, 1: 1.5, 2: 2, 7: 7}


def test_large_trees_have_files_that_go_with_them(saved):
    (first,) = saved.files.iterdir()
    save(saved, {7: tree(8, LARGE)})
    (second,) = saved.files.iterdir()
    assert first != second
    save(saved, {7: tree(9)})
    assert list(saved.files.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_time_one_of_two_moments_is_whole(saved, tmp_path, moment):
    """A forked process ends before its n-th system call of a kind that a commit needs."""
    new = {n: tree(n + 10, LARGE if n == 7 else 5000) for n in range(8)}
    pid = os.fork()  # torch's threads do not survive it
    if pid == 0:
        calls = iter(range(moment, -1, -1))

        def dies(*_: Any) -> int:
            if next(calls, 0) == 0:
                os._exit(9)
            return 0

        with suppress(BaseException):
            connect = database._connect

            def watched(path: Path, mode: str) -> sqlite3.Connection:
                file = connect(path, mode)
                file.set_progress_handler(dies, 60)
                return file

            database._connect = watched
            save(saved, new, round=4)
        os._exit(0)
    os.waitpid(pid, 0)
    facts, trees = content(tmp_path)
    if facts["round"] == 3:
        assert trees == {0: 0, 1: 1, 7: 7}
    else:
        assert trees == {n: n + 10 for n in range(8)}


def test_two_may_read_while_one_writes(saved, tmp_path):
    reader = StateDatabase(tmp_path)
    reader.load()
    save(saved, {0: tree(5)}, round=4)
    assert float(reader.read(0)["w"][0]) == 5


@pytest.mark.parametrize(
    ("count", "numbers"), [(200, 10_000), (2_000, 1_000), (300, 20_000)], ids=str
)
def test_a_save_that_exceeds_sqlites_cache_lets_others_read(
    saved, tmp_path, monkeypatch, count, numbers
):
    """SQLite's own cache has 2 MB."""
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.0)
    reader = StateDatabase(tmp_path)
    reader.load()

    def trees():
        for number in range(count):
            yield number, tree(9, numbers)
            assert float(reader.read(1)["w"][0]) == 1, "the moment before"
            reader.close()

    assert tree_bytes(tree(9, numbers)) < LARGE
    places = saved.save({"round": 4}, trees()).places
    assert len(places) == count
    assert float(reader.read(1)["w"][0]) == 9


def test_every_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    store = StateDatabase(tmp_path)
    save(store, {0: tree(0), 1: tree(1)}, round=3)
    before, whole = content(tmp_path), store.path.read_bytes()
    refusals = 0
    for place in (n for n, byte in enumerate(whole) if byte or n < 128 or n % 64 == 0):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        store.path.write_bytes(flipped)
        try:
            found = content(tmp_path)
        except UserError:
            refusals += 1
        else:
            assert found == before, place
    assert refusals > 500


@pytest.mark.parametrize("place", [0, 8, 200, -1])
def test_every_flipped_bit_of_a_large_tree_is_seen(saved, tmp_path, place):
    (path,) = saved.files.iterdir()
    whole = bytearray(path.read_bytes())
    whole[place] ^= 1
    path.write_bytes(whole)
    refused(tmp_path, path.name, "its content does not fit its checksum")
    with pytest.raises(UserError, match=path.name):
        saved.read(7)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE trees SET number = 9 WHERE number = 1",
        "DELETE FROM trees WHERE number = 1",
        "INSERT INTO trees VALUES ('checkpoint', 5, NULL, 1, 'none')",
        "UPDATE trees SET snapshot = 'best' WHERE number = 1",
        "UPDATE snapshots SET name = 'best'",
        "UPDATE trees SET blob = NULL WHERE number = 1",
        "UPDATE trees SET blob = 99 WHERE number = 1",
        "UPDATE trees SET blob = 1 WHERE number = 1",
        "UPDATE blobs SET content = 'text'",
        "DELETE FROM blobs",
        "UPDATE trees SET file = NULL WHERE number = 7",
        "UPDATE trees SET file = 3 WHERE number = 7",
        "UPDATE snapshots SET json = replace(json, '3', '4')",
        "UPDATE snapshots SET json = x'ff00'",
        "DELETE FROM snapshots",
        "CREATE TRIGGER t AFTER INSERT ON trees BEGIN DELETE FROM trees; END",
        "DROP TABLE trees",
    ],
)
def test_an_edited_database_is_refused(saved, tmp_path, change):
    with closing(sqlite3.connect(saved.path)) as file:
        file.execute(change)
        file.commit()
    refused(tmp_path, "states.sqlite")


def test_two_trees_cannot_be_exchanged(saved, tmp_path):
    with closing(sqlite3.connect(saved.path)) as file:
        rows = file.execute("SELECT blob, checksum FROM trees WHERE number < 2").fetchall()
        for number, row in enumerate(reversed(rows)):
            query = "UPDATE trees SET blob = ?, checksum = ? WHERE number = ?"
            file.execute(query, [*row, number])
        file.commit()
    refused(tmp_path, "states.sqlite", "its content does not fit its checksum")


@pytest.mark.parametrize("content_", [b"{}", b"\x00\xff" * 500, b"SQLite format 3\x00" + b"x" * 99])
def test_what_is_no_database_is_refused(saved, tmp_path, content_):
    saved.path.write_bytes(content_)
    refused(tmp_path, "states.sqlite")


def test_a_missing_file_is_named(saved, tmp_path):
    (path,) = saved.files.iterdir()
    path.unlink()
    refused(tmp_path, path.name, "it is missing")


def test_a_file_that_others_may_not_read_is_not_called_missing(saved, tmp_path, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != saved.path and access(path, mode))
    with pytest.raises(UserError, match=r"this account may not read .*states.sqlite; ask its"):
        content(tmp_path)


def test_another_versions_file_is_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(database._SCHEMA, "more", "CREATE TABLE more (x)")
    refused(tmp_path, "states.sqlite", "its tables are not those of this version of fedray")
