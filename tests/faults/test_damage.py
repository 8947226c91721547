"""Damaged files of runs are refused with one sentence, or change no number."""

from __future__ import annotations

import random
import shutil

import pytest

import fedray.checkpoint
from benchmarks.faults import damage
from fedray.records import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def victims(tmp_path_factory):
    """One method's run, as it was killed and at its end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setattr(damage, "METHODS", {"scaffold_digits": damage.METHODS["scaffold_digits"]})
        return damage.make_victims(tmp_path_factory.mktemp("victims"))


def test_no_damage_is_read_as_other_numbers(victims, tmp_path, monkeypatch):
    monkeypatch.setattr(damage, "make_victims", lambda folder: victims)
    tally = damage.run(26, 0, tmp_path)
    assert tally.wrong == []
    outcomes = {outcome for _, outcome in tally.outcomes}
    assert {"read, refused", "not read, refused", "read, same numbers"} <= outcomes


def test_the_harness_sees_tensors_that_nobody_checks(victims, tmp_path, monkeypatch):
    read = fedray.checkpoint._read

    def read_unchecked(path, expected):
        with monkeypatch.context() as patched:
            patched.setattr(fedray.checkpoint, "_file_checksum", lambda *_: expected)
            return read(path, expected)

    monkeypatch.setattr(fedray.checkpoint, "_read", read_unchecked)
    assert "other numbers" in came_of(damage.change_tensors, victims[0], tmp_path)


def came_of(kind, victim, folder) -> set[str]:
    """What comes of a kind of damage, done twelve times."""
    found = set()
    for attempt in range(12):
        damaged = folder / str(attempt)
        shutil.copytree(victim.folder, damaged)
        try:
            kind(random.Random(attempt), victim, damaged)
            found.add(damage.outcome(victim, damaged)[1])
        except damage.Nothing:
            continue
        except Exception as error:
            found.add(type(error).__name__)
    return found


def test_what_is_undamaged_comes_out_the_same(victims, tmp_path):
    for index, victim in enumerate(victims):
        folder = tmp_path / str(index)
        shutil.copytree(victim.folder, folder)
        assert damage.outcome(victim, folder) == (True, "read, same numbers")
        assert RunFolder(folder).read().done == 4
