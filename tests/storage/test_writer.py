"""Writing a run costs the same per round at any length, in time, memory and bytes."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace

import pytest
from test_records import INFO, round_, written

from fedray.errors import UserError
from fedray.storage.run import Costs
from fedray.storage.run_folder import RunFolder
from fedray.storage.writer import RunWriter


def test_a_writer_keeps_no_rounds(tmp_path):
    def held() -> int:
        values = vars(writer).values()
        return sum(sys.getsizeof(value) for value in values) + len(values)

    writer = written(tmp_path, 5, rounds=1000)
    before = held()
    for number in range(5, 200):
        writer.append(round_(number), Costs())
    assert held() == before
    writer.close()
    assert RunFolder(tmp_path).read().done == 199


def test_rounds_and_checkpoint_know_each_other_by_a_chain(tmp_path):
    writer, before = written(tmp_path, 2), ""
    before = writer.rounds_checksum
    writer.append(round_(2), Costs())
    writer.close()
    read = RunFolder(tmp_path).read()
    assert read.rounds_checksum == writer.rounds_checksum
    assert read.until(1).rounds_checksum == before
    assert read.until(-1).rounds_checksum == INFO.identity
    again = RunWriter(RunFolder(tmp_path), INFO, read)
    assert again.rounds_checksum == writer.rounds_checksum


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0].replace("0.25", "0.26"), *lines[1:]],
        lambda lines: [*lines[:2], lines[2].replace('"wall_seconds": 2.0', '"wall_seconds": 3.0')],
        lambda lines: [*lines, lines[2]],
    ],
    ids=["doubled", "exchanged", "without first", "without one", "edited", "costs", "repeated"],
)
def test_lines_that_are_not_those_that_were_written_are_refused(tmp_path, change):
    written(tmp_path, 3)  # never closed
    file = RunFolder(tmp_path).rounds_file
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(change(lines)))
    assert file.read_text() != "".join(lines)
    with pytest.raises(UserError, match=r"rounds\.jsonl, line \d, cannot be read: ValueError"):
        RunFolder(tmp_path).read()


def test_rounds_of_another_run_are_refused(tmp_path):
    written(tmp_path / "a", 3)
    (tmp_path / "b").mkdir()
    other = RunWriter(RunFolder(tmp_path / "b"), replace(INFO, identity="4" * 64))
    other.append(round_(0), Costs())
    foreign = RunFolder(tmp_path / "b").rounds_file.read_bytes()
    RunFolder(tmp_path / "a").rounds_file.write_bytes(foreign)
    with pytest.raises(UserError, match="does not follow the line above"):
        RunFolder(tmp_path / "a").read()


def test_a_line_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    writer, folder = written(tmp_path, 2), RunFolder(tmp_path)
    whole, file = folder.rounds_file.read_bytes(), writer._file

    class Full:
        """A disk that takes ten bytes more."""

        def write(self, line: bytes) -> int:
            if file.tell() >= len(whole) + 10:
                raise OSError(errno.ENOSPC, "No space left on device")
            return file.write(line[:10])

        def __getattr__(self, name: str):
            return getattr(file, name)

    writer._file = Full()
    with pytest.raises(OSError, match="No space"):
        writer.append(round_(2), Costs())
    assert folder.rounds_file.read_bytes() == whole
    writer._file = file
    writer.append(round_(2), Costs())
    writer.close()
    assert folder.read().done == 2


def test_a_disk_without_room_leaves_the_result_before(tmp_path, monkeypatch):
    writer, folder = written(tmp_path, 2), RunFolder(tmp_path)
    before = folder.result.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert folder.result.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "rounds.jsonl"}
