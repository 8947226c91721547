"""What a run leaves behind: written at a constant cost per round, read back, cut, damaged."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from fedray.base.errors import UserError
from fedray.storage.environment import Environment, environment
from fedray.storage.metric import Metric, find_metric
from fedray.storage.run import Costs, Round, Run, RunInfo, Traffic
from fedray.storage.run_folder import RunFolder, RunWriter, find_run_folders, mark_of

INFO = RunInfo(
    config={
        "name": "tiny",
        "rounds": 3,
        "seed": 2,
        "algorithm": {"name": "fedproto", "lambda": 1.0},
        "report": {"select": "test"},
    },
    identity="1" * 64,
    environment=Environment({"python": "3.11"}, "a CPU, GPU a GPU"),
    partition_sha256="2" * 64,
    data_sha256="3" * 64,
    metrics=(
        Metric("local_accuracy"),
        Metric("local_accuracy_{how}"),
        Metric("train_loss", "nats", "min", "train"),
    ),
)
PARTITION = {"sha256": "2" * 64, "images_sha256": "3" * 64}


def round_(number: int, **changes) -> Round:
    return Round(
        **{
            "round": number,
            "seconds": 1.5,
            "metrics": {"train_loss": 0.25, "local_accuracy": 0.5, "local_accuracy_weighted": 0.5},
            "per_client": {0: 0.25, 11: 0.75},
            "up": Traffic({"prototypes": 10}, {"prototypes": 40}),
            "down": Traffic({"prototypes": 20}, {"prototypes": 80}),
            "participants": [0, 11],
            "noised": [[0], [0, 11]],
            "absent": [11],
            **changes,
        }
    )


def written(folder: Path, count: int, **planned: int) -> RunWriter:
    """A writer that has written so many rounds and is still open."""
    folder.mkdir(parents=True, exist_ok=True)
    info = replace(INFO, config={**INFO.config, **planned})
    writer = RunWriter(RunFolder(folder), info, PARTITION)
    for number in range(count):
        writer.append(round_(number), Costs(float(number), 2.0, 1000))
    return writer


def torn(folder: RunFolder) -> None:
    """Leave the beginning of a line, as a killed process does."""
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 3, "seconds": 1.0, "metr')


# --- written and read -----------------------------------------------------------------------------


def test_what_is_written_is_what_is_read(tmp_path):
    writer, folder = written(tmp_path, 4), RunFolder(tmp_path)
    writer.end()
    writer.close()
    assert folder.read() == Run(INFO, [*map(round_, range(4))], Costs(3.0, 2.0, 1000))
    assert find_run_folders([tmp_path]) == [tmp_path]
    assert folder.class_names() == []
    tree = json.loads(folder.head.read_text())
    assert not {"rounds", "best", "final", "costs", "partition_sha256", "data_sha256"} & {*tree}
    assert tree["metrics"][-1] == {
        "name": "train_loss", "unit": "nats", "direction": "min", "on": "train"
    }  # fmt: skip
    assert tree["environment"]["hardware"] == "a CPU, GPU a GPU"
    line = json.loads(folder.rounds_file.read_text().splitlines()[1])
    assert line["up"] == {"params": {"prototypes": 10}, "bytes": {"prototypes": 40}}
    assert line["per_client"] == {"0": 0.25, "11": 0.75}


def test_the_times_of_a_run_are_recorded(tmp_path):
    writer, folder = written(tmp_path, 3), RunFolder(tmp_path)
    started = folder.read().info.started
    assert abs((datetime.now(UTC) - started).total_seconds()) < 60
    writer.close()
    assert not folder.is_finished
    resumed = RunWriter(folder, INFO, PARTITION, folder.read())
    assert folder.read().costs == Costs(2.0, 2.0, 1000)  # should the process be killed now
    resumed.append(round_(3), Costs())
    assert not folder.is_finished
    resumed.end()
    resumed.close()
    assert folder.is_finished
    assert folder.read_head().started == started
    last = json.loads(folder.rounds_file.read_text().splitlines()[-1])
    assert datetime.fromisoformat(last["ended"]) > started


def test_a_round_costs_the_same_at_any_length(tmp_path):
    def held() -> int:
        values = vars(writer).values()
        return sum(sys.getsizeof(value) for value in values) + len(values)

    writer, folder = written(tmp_path, 5, rounds=1000), RunFolder(tmp_path)
    head, memory, lengths = folder.head.stat().st_mtime_ns, held(), set[int]()
    before = folder.rounds_file.read_text()
    for number in range(10, 90):
        writer.append(round_(number), Costs())
        text = folder.rounds_file.read_text()
        assert text.startswith(before)
        lengths.add(len(text) - len(before))
        before = text
    assert len(lengths) == 1
    assert held() - memory < 100 * 80, "a number a round"
    assert folder.head.stat().st_mtime_ns == head
    writer.close()


def test_rounds_after_the_checkpoint_are_cut_at_a_resume(tmp_path):
    writer, folder = written(tmp_path, 2), RunFolder(tmp_path)
    mark = writer.mark
    writer.append(round_(2), Costs())
    after = writer.mark
    torn(folder)
    assert folder.read().rounds == [*map(round_, range(3))]
    assert [mark_of(folder.content(count)) for count in (2, 3)] == [mark, after]
    writer.close()
    resumed = RunWriter(folder, INFO, PARTITION, folder.read().until(1))
    assert folder.read().done == 1
    assert resumed.mark == mark
    for number in (2, 3):
        resumed.append(round_(number), Costs(10.0 + number))
    resumed.close()
    assert (folder.read().done, folder.read().costs.wall_seconds) == (3, 13.0)


def test_the_first_analyses_are_kept_beside_the_last(tmp_path):
    given = [{"text": [[1.0, value], [value, 1.0]]} for value in (0.1, 0.2, 0.3)]
    writer, folder = written(tmp_path, 0), RunFolder(tmp_path)
    assert folder.read_matrices() == {}
    for number, matrices in enumerate(given, 9):
        writer.append(round_(number, matrices=matrices), Costs())
    writer.close()
    assert [*folder.matrices()] == [9, 11]
    assert (folder.read_matrices("first"), folder.read_matrices()) == (given[0], given[2])
    for earlier, first in ((folder.read().until(10), given[0]), (None, given[1])):
        resumed = RunWriter(folder, INFO, PARTITION, earlier)
        resumed.append(round_(11, matrices=given[1]), Costs())
        assert folder.read_matrices("first") == first
        resumed.close()


# --- a full disk ----------------------------------------------------------------------------------


def test_a_line_is_there_whole_or_not_at_all(tmp_path):
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
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.append(round_(2, metrics={"train_loss": float("nan")}), Costs())
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


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], "{broken", lines[2]],
        lambda lines: [lines[0], '{"round": 1}', lines[2]],
        lambda lines: [lines[0], "[" * 100_000, lines[2]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [*lines, lines[2]],
    ],
    ids=["broken", "part", "deep", "doubled", "exchanged", "without one", "repeated"],
)
def test_damaged_rounds_are_refused_with_one_sentence(tmp_path, change):
    written(tmp_path, 3)  # never closed
    file = RunFolder(tmp_path).rounds_file
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    with pytest.raises(UserError, match=r"rounds\.jsonl, line \d, cannot be read: "):
        RunFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", r"run\.json cannot be read"),
        ("[]", "is not the run.json of a run"),
        ({"format": 7}, "is not the run.json of a run"),
        ({"identity": None}, r"run\.json cannot be read: identity: "),
        ({"environment": {"versions": 3}}, "cannot be read: environment.versions: Input"),
        ({"later": 1}, "cannot be read: later: Unexpected"),
        ({"partition": 1}, r"run\.json cannot be read"),
    ],
)
def test_a_damaged_run_json_is_refused_with_one_sentence(tmp_path, change, message):
    written(tmp_path, 4).close()
    head = RunFolder(tmp_path).head
    if isinstance(change, str):
        head.write_text(change)
    else:
        tree = {**json.loads(head.read_text()), **change}
        head.write_text(json.dumps({k: v for k, v in tree.items() if v is not None}))
    with pytest.raises(UserError, match=message) as raised:
        RunFolder(tmp_path).read()
    assert "\n" not in str(raised.value)


# --- metrics and environments ---------------------------------------------------------------------


def test_a_metric_means_what_was_declared():
    assert INFO.metric("train_loss").direction == "min"
    assert INFO.metric("local_accuracy_worst10").is_share
    assert INFO.metric("local_accuracy_worst10").name == "local_accuracy_worst10"
    unknown = INFO.metric("client/x")
    assert (unknown.unit, unknown.direction, unknown.is_share) == ("number", None, False)
    family, exact = Metric("{name}_loss", "index"), Metric("train_loss", "nats", "min")
    every, domains = Metric("accuracy_{name}"), Metric("accuracy_in_{domain}", "index")
    for declared in ([family, exact, every, domains], [domains, every, exact, family]):
        assert find_metric("train_loss", declared) == exact
        assert find_metric("global_loss", declared) == family
        assert find_metric("accuracy_in_art", declared) == domains  # the longest one
        assert find_metric("accuracy_art", declared) == every
        assert find_metric("_loss", declared) is None


def test_an_environment_says_what_has_changed():
    before = Environment({"torch": "2.14", "git": "a", "ray": "1"}, "AMD", 1)
    now = Environment({"torch": "2.15", "git": "a", "ray": "2", "numpy": "2.0"}, "Intel", 1)
    assert before.changes(now) == ["torch 2.14, now 2.15", "hardware AMD, now Intel"]
    assert before.changes(before) == []
    here = environment(threads=3)
    assert here.threads == 3
    assert here.versions["torch"]
    assert torch.backends.cpu.get_cpu_capability() in here.hardware
