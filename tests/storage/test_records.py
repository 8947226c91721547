"""What a run leaves behind: written, read back, interrupted, damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from fedray.base.errors import UserError
from fedray.storage.environment import Environment, environment
from fedray.storage.files import write_json
from fedray.storage.metric import Metric, find_metric
from fedray.storage.run import Costs, Round, Run, RunInfo, Traffic
from fedray.storage.run_folder import RunFolder, RunWriter, find_run_folders

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


def round_(number: int, accuracy: float | None = 0.5) -> Round:
    measured = {"local_accuracy": accuracy, "local_accuracy_weighted": accuracy}
    return Round(
        round=number,
        seconds=1.5,
        metrics={"train_loss": 0.25, **(measured if accuracy is not None else {})},
        per_client={0: 0.25, 11: 0.75},
        up=Traffic({"prototypes": 10}, {"prototypes": 40}),
        down=Traffic({"prototypes": 20}, {"prototypes": 80}),
        participants=[0, 11],
        noised=[[0], [0, 11]],
        absent=[11],
    )


PARTITION = {"sha256": "2" * 64, "images_sha256": "3" * 64}


def written(folder: Path, count: int, **planned: int) -> RunWriter:
    """A writer that has written so many rounds and is still open."""
    folder.mkdir(parents=True, exist_ok=True)
    info = replace(INFO, config={**INFO.config, **planned})
    writer = RunWriter(RunFolder(folder), info, PARTITION)
    for number in range(count):
        writer.append(round_(number), Costs(float(number), 2.0, 1000))
    return writer


# --- what is written is what is read -------------------------------------------------------------


def test_what_is_written_is_what_is_read(tmp_path):
    writer = written(tmp_path, 4)
    writer.end()
    writer.close()
    run = RunFolder(tmp_path).read()
    assert run == Run(INFO, [round_(number) for number in range(4)], Costs(3.0, 2.0, 1000))
    tree = json.loads(RunFolder(tmp_path).head.read_text())
    assert not {"rounds", "best", "final", "costs", "partition_sha256", "data_sha256"} & {*tree}
    assert tree["metrics"][-1] == {
        "name": "train_loss", "unit": "nats", "direction": "min", "on": "train"
    }  # fmt: skip
    assert tree["environment"]["hardware"] == "a CPU, GPU a GPU"
    lines = RunFolder(tmp_path).rounds_file.read_text().splitlines()
    line = json.loads(lines[1])
    assert line["up"] == {"params": {"prototypes": 10}, "bytes": {"prototypes": 40}}
    assert line["per_client"] == {"0": 0.25, "11": 0.75}


def test_the_times_of_a_run_are_recorded(tmp_path):
    writer, folder = written(tmp_path, 3), RunFolder(tmp_path)
    started = folder.read().info.started
    assert abs((datetime.now(UTC) - started).total_seconds()) < 60
    assert not folder.is_finished
    writer.close()
    assert not folder.is_finished
    resumed = RunWriter(folder, INFO, PARTITION, folder.read())
    resumed.append(round_(3), Costs())
    assert not folder.is_finished
    resumed.end()
    resumed.close()
    assert folder.read_head().started == started
    assert folder.is_finished
    assert (
        datetime.fromisoformat(json.loads(folder.rounds_file.read_text().splitlines()[-1])["ended"])
        > started
    )


def test_a_metric_means_what_was_declared():
    assert INFO.metric("train_loss").direction == "min"
    assert INFO.metric("local_accuracy_worst10").is_share
    assert INFO.metric("local_accuracy_worst10").name == "local_accuracy_worst10"
    unknown = INFO.metric("client/x")
    assert (unknown.unit, unknown.direction, unknown.is_share) == ("number", None, False)
    family, exact = Metric("{name}_loss", "index"), Metric("train_loss", "nats", "min")
    assert find_metric("train_loss", [family, exact]) == exact
    assert find_metric("global_loss", [family, exact]) == family
    assert find_metric("_loss", [family, exact]) is None


# --- while a run is going ------------------------------------------------------------------------


def test_a_round_adds_one_line_and_leaves_the_others_alone(tmp_path):
    writer, before = written(tmp_path, 0, rounds=50), ""
    file = RunFolder(tmp_path).rounds_file
    result = RunFolder(tmp_path).head.stat().st_mtime_ns
    lengths = []
    for number in range(20):
        writer.append(round_(number), Costs())
        text = file.read_text()
        assert text.startswith(before)
        assert text.count("\n") == number + 1
        lengths.append(len(text) - len(before))
        before = text
    assert max(lengths) - min(lengths) <= 2  # a round costs the same at any length
    assert RunFolder(tmp_path).head.stat().st_mtime_ns == result
    assert RunFolder(tmp_path).read().done == 19
    writer.close()


def test_rounds_after_the_checkpoint_are_cut_at_a_resume(tmp_path):
    writer, folder = written(tmp_path, 3), RunFolder(tmp_path)
    writer.close()  # as the session does when it is stopped
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 3, "seconds": 1.0, "metr')  # a torn last line
    resumed = RunWriter(folder, INFO, PARTITION, folder.read().until(0))
    assert folder.read().done == 0
    for number in (1, 2, 3):
        resumed.append(round_(number), Costs(10.0 + number))
    resumed.close()
    run = folder.read()
    assert [done.round for done in run.rounds] == [0, 1, 2, 3]
    assert run.costs.wall_seconds == 13.0


def test_a_killed_run_is_read_with_all_whole_lines(tmp_path):
    written(tmp_path, 3)  # never closed
    folder = RunFolder(tmp_path)
    assert folder.read().done == 2
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 3, "seconds": 1.0, "metr')  # a torn last line
    assert folder.read().rounds == [round_(number) for number in range(3)]
    assert find_run_folders([tmp_path]) == [tmp_path]


def test_an_analysis_goes_into_a_file_of_its_own(tmp_path):
    writer, folder = written(tmp_path, 1), RunFolder(tmp_path)
    assert folder.read_matrices() == {}
    assert folder.class_names() == []
    matrices = {"text": [[1.0, 0.5], [0.5, 1.0]]}
    writer.append(replace(round_(1), matrices=matrices), Costs())
    writer.close()
    assert folder.read_matrices() == matrices
    assert "text" not in folder.head.read_text()


def test_the_first_analyses_are_kept_beside_the_last(tmp_path):
    write_json(tmp_path / "matrices.json", {10: {"text": [[1.0]]}, 9: {"text": [[0.5]]}})
    assert [*RunFolder(tmp_path).matrices()] == [9, 10]
    writer, folder = written(tmp_path, 0), RunFolder(tmp_path)
    given = [{"text": [[1.0, value], [value, 1.0]]} for value in (0.1, 0.2, 0.3)]
    for number, matrices in enumerate(given):
        writer.append(replace(round_(number), matrices=matrices), Costs())
    writer.close()
    assert (folder.read_matrices("first"), folder.read_matrices()) == (given[0], given[2])

    resumed = RunWriter(folder, INFO, PARTITION, folder.read().until(1))
    resumed.append(replace(round_(2), matrices=given[1]), Costs())
    assert folder.read_matrices("first") == given[0]
    resumed.close()

    anew = RunWriter(folder, INFO, PARTITION)
    anew.append(replace(round_(0), matrices=given[1]), Costs())
    assert folder.read_matrices("first") == given[1]
    anew.close()


# --- what is damaged -----------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["{broken", '{"round": 1}', "[" * 100_000])
def test_a_damaged_line_is_refused_with_one_sentence(tmp_path, line):
    written(tmp_path, 3)
    file = RunFolder(tmp_path).rounds_file
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, lines[2]]) + "\n")
    with pytest.raises(UserError, match=r"rounds\.jsonl, line 2, cannot be read: "):
        RunFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", r"run\.json cannot be read"),
        ("[]", "is not the run.json of a run"),
        ({"format": 7}, "is not the run.json of a run"),
        ({"identity": None}, r"run\.json cannot be read: identity: "),
        ({"config": 3}, "cannot be read: config: Input"),
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


def test_a_number_that_is_not_finite_is_never_written(tmp_path):
    writer = written(tmp_path, 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.append(replace(round_(1), metrics={"train_loss": float("nan")}), Costs())
    writer.close()
    assert RunFolder(tmp_path).read().done == 0


def test_of_several_families_the_longest_says_what_a_metric_means():
    every, domains = Metric("accuracy_{name}"), Metric("accuracy_in_{domain}", "index")
    for declared in ([every, domains], [domains, every]):
        assert find_metric("accuracy_in_art", declared) == domains
        assert find_metric("accuracy_art", declared) == every


def test_what_an_interrupted_run_cost_is_kept_when_the_next_one_is_killed_at_once(tmp_path):
    written(tmp_path, 3)  # never closed
    folder = RunFolder(tmp_path)
    RunWriter(folder, INFO, PARTITION, folder.read())  # nor this one, before its first round
    assert folder.read().costs == Costs(2.0, 2.0, 1000)


def test_an_environment_says_what_has_changed():
    before = Environment({"torch": "2.14", "git": "a", "ray": "1"}, "AMD", 1)
    now = Environment({"torch": "2.15", "git": "a", "ray": "2", "numpy": "2.0"}, "Intel", 1)
    assert before.changes(now) == ["torch 2.14, now 2.15", "hardware AMD, now Intel"]
    assert before.changes(before) == []


def test_the_environment_of_this_process():
    here = environment(threads=3)
    assert here.threads == 3
    assert here.versions["torch"]
    assert torch.backends.cpu.get_cpu_capability() in here.hardware
