"""Writing a run costs the same per round at any length, in time, memory and bytes."""

from __future__ import annotations

import errno
import os
import sys

import pytest
from test_records import INFO, PARTITION, round_, written

from fedray.base.errors import UserError
from fedray.storage.run import Costs
from fedray.storage.run_folder import RunFolder, RunWriter


def test_a_writer_keeps_no_rounds(tmp_path):
    def held() -> int:
        values = vars(writer).values()
        return sum(sys.getsizeof(value) for value in values) + len(values)

    writer = written(tmp_path, 5, rounds=1000)
    before = held()
    for number in range(5, 200):
        writer.append(round_(number), Costs())
    assert held() - before < 100 * 195, "a number a round"
    writer.close()
    assert RunFolder(tmp_path).read().done == 199


def test_a_mark_is_that_of_the_lines_above(tmp_path):
    writer, folder = written(tmp_path, 2), RunFolder(tmp_path)
    before = writer.mark
    writer.append(round_(2), Costs())
    after = writer.mark
    writer.close()
    assert (folder.mark(2), folder.mark(3), folder.mark(0)["bytes"]) == (before, after, 0)
    again = RunWriter(folder, INFO, PARTITION, folder.read().until(1))
    assert again.mark == before
    again.close()
    assert folder.read().done == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [*lines, lines[2]],
    ],
    ids=["doubled", "exchanged", "without one", "repeated"],
)
def test_rounds_that_do_not_follow_each_other_are_refused(tmp_path, change):
    written(tmp_path, 3)  # never closed
    file = RunFolder(tmp_path).rounds_file
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(change(lines)))
    with pytest.raises(UserError, match=r"rounds\.jsonl, line \d, cannot be read: ValueError"):
        RunFolder(tmp_path).read()


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


def test_a_disk_without_room_leaves_the_rounds_before(tmp_path, monkeypatch):
    writer, folder = written(tmp_path, 2), RunFolder(tmp_path)
    before = folder.rounds_file.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert folder.rounds_file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "rounds.jsonl"}
