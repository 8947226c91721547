"""What a run leaves behind: written, read back, interrupted, damaged, of the first version."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedray.errors import UserError
from fedray.records import (
    Costs,
    Event,
    Metric,
    Round,
    Run,
    RunFolder,
    RunInfo,
    RunWriter,
    Traffic,
    find_metric,
    find_runs,
    sealed,
    unsealed,
)
from fedray.report import group, load
from fedray.report.command import main as report

FIRST_VERSION = Path(__file__).parent / "first_version.json"

INFO = RunInfo(
    name="tiny",
    scale="laptop",
    algorithm="fedproto",
    config={"rounds": 3, "algorithm": {"name": "fedproto", "lambda": 1.0}},
    seed=2,
    identity="1" * 64,
    versions={"python": "3.11"},
    partition_sha256="2" * 64,
    data_sha256="3" * 64,
    architectures=("cnn2", "mlp"),
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
        events=[Event(11, "late by 1 round")],
    )


def written(folder: Path, count: int, **planned: int) -> RunWriter:
    """A writer that has written so many rounds and is still open."""
    folder.mkdir(parents=True, exist_ok=True)
    info = replace(INFO, config={**INFO.config, **planned})
    writer = RunWriter(RunFolder(folder), info)
    for number in range(count):
        writer.append(round_(number), Costs(float(number), 2.0, 1000))
    return writer


# --- what is written is what is read -------------------------------------------------------------


def test_what_is_written_is_what_is_read(tmp_path):
    written(tmp_path, 4).close()
    run = RunFolder(tmp_path).read()
    assert run == Run(INFO, [round_(number) for number in range(4)], Costs(3.0, 2.0, 1000))
    assert not RunFolder(tmp_path).rounds_file.exists()
    tree = json.loads(RunFolder(tmp_path).result.read_text())
    assert Run.from_json(tree).to_json() == tree
    assert tree["schema"] == 4
    assert tree["metrics"]["train_loss"] == {"unit": "nats", "direction": "min", "on": "train"}
    assert (
        tree["rounds"][1]["up_bytes"] == tree["rounds"][1]["up_bytes_by_kind"]["prototypes"] == 40
    )
    assert tree["rounds"][1]["metrics"]["per_client"] == {"0": 0.25, "11": 0.75}


def test_best_is_the_first_of_the_highest_and_final_the_last_evaluated():
    accuracies = [0.1, 0.6, 0.6, None]
    run = Run(INFO, [round_(number, value) for number, value in enumerate(accuracies)])
    assert (run.best.round, run.best.local_accuracy) == (1, 0.6)
    assert (run.final.round, run.done) == (2, 3)
    assert Run(INFO).best is None
    assert Run(INFO).done == -1


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
    result = RunFolder(tmp_path).result.stat().st_mtime_ns
    lengths = []
    for number in range(20):
        writer.append(round_(number), Costs())
        text = file.read_text()
        assert text.startswith(before)
        assert text.count("\n") == number + 1
        lengths.append(len(text) - len(before))
        before = text
    assert max(lengths) - min(lengths) <= 2  # a round costs the same at any length
    assert RunFolder(tmp_path).result.stat().st_mtime_ns == result
    assert RunFolder(tmp_path).read().done == 19
    writer.close()


def test_result_json_is_assembled_at_the_end_and_the_rounds_file_goes(tmp_path):
    writer, folder = written(tmp_path, 4), RunFolder(tmp_path)
    assert json.loads(folder.result.read_text())["rounds"] == []
    writer.close()
    assert len(json.loads(folder.result.read_text())["rounds"]) == 4
    assert not folder.rounds_file.exists()


def test_result_json_is_assembled_after_an_interruption_too(tmp_path):
    writer, folder = written(tmp_path, 2), RunFolder(tmp_path)
    writer.close()  # as the session does when it is stopped
    assert len(json.loads(folder.result.read_text())["rounds"]) == 2
    assert folder.rounds_file.exists()

    earlier = folder.read()
    resumed = RunWriter(folder, INFO, replace(earlier, rounds=earlier.rounds[:1]))
    for number in (1, 2, 3):
        resumed.append(round_(number), Costs(10.0 + number))
    resumed.close()
    run = folder.read()
    assert [done.round for done in run.rounds] == [0, 1, 2, 3]
    assert run.costs.wall_seconds == 13.0
    assert not folder.rounds_file.exists()


def test_result_json_of_a_killed_run_is_put_together_without_its_writer(tmp_path):
    folder = RunFolder(tmp_path)
    folder.put_together()  # nothing is there yet
    assert list(tmp_path.iterdir()) == []
    written(tmp_path, 2)  # never closed
    folder.put_together()
    assert len(json.loads(folder.result.read_text())["rounds"]) == 2
    assert folder.rounds_file.exists()
    written(tmp_path, 4)
    folder.put_together()
    assert len(json.loads(folder.result.read_text())["rounds"]) == 4
    assert not folder.rounds_file.exists()


def test_a_killed_run_is_read_with_all_whole_lines(tmp_path):
    written(tmp_path, 3)  # never closed
    folder = RunFolder(tmp_path)
    assert json.loads(folder.result.read_text())["rounds"] == []
    assert folder.read().done == 2
    with folder.rounds_file.open("a") as file:
        file.write('{"round": 3, "seconds": 1.0, "metr')  # a torn last line
    assert folder.read().rounds == [round_(number) for number in range(3)]
    ((folder, found),) = find_runs([tmp_path])
    assert (folder, found.done) == (tmp_path, 2)


def test_an_analysis_goes_into_a_file_of_its_own(tmp_path):
    writer, folder = written(tmp_path, 1), RunFolder(tmp_path)
    assert folder.read_matrices() == {}
    assert folder.class_names() == []
    matrices = {"text": [[1.0, 0.5], [0.5, 1.0]]}
    writer.append(replace(round_(1), matrices=matrices), Costs())
    writer.close()
    assert folder.read_matrices() == matrices
    assert "text" not in folder.result.read_text()


def test_the_first_analyses_are_kept_beside_the_last(tmp_path):
    writer, folder = written(tmp_path, 0), RunFolder(tmp_path)
    given = [{"text": [[1.0, value], [value, 1.0]]} for value in (0.1, 0.2, 0.3)]
    for number, matrices in enumerate(given):
        writer.append(replace(round_(number), matrices=matrices), Costs())
    writer.close()
    assert (folder.read_matrices("first"), folder.read_matrices()) == (given[0], given[2])

    earlier = folder.read()
    resumed = RunWriter(folder, INFO, replace(earlier, rounds=earlier.rounds[:2]))
    resumed.append(replace(round_(2), matrices=given[1]), Costs())
    assert folder.read_matrices("first") == given[0]
    resumed.close()

    anew = RunWriter(folder, INFO)
    anew.append(replace(round_(0), matrices=given[1]), Costs())
    assert folder.read_matrices("first") == given[1]
    anew.close()


# --- what is damaged -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "JSONDecodeError"),
        ('{"round": 1}', "ValueError: it has no checksum"),
        ("[]", "ValueError: it holds list"),
        ('{"round": 1, "checksum": 1}', "does not fit its checksum"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_line_is_refused_with_one_sentence(tmp_path, line, reason):
    written(tmp_path, 3)
    file = RunFolder(tmp_path).rounds_file
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, lines[2]]) + "\n")
    with pytest.raises(UserError, match=rf"rounds\.jsonl, line 2, cannot be read: .*({reason})"):
        RunFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "result.json cannot be read"),
        ("[]", "is not a run's result: it has no 'config'"),
        ({"seed": None}, "it has no 'seed'"),
        ({"rounds": [{"round": 1}]}, "its content does not fit its checksum"),
        ({"seed": 3}, "its content does not fit its checksum"),
        ({"checksum": None}, "it has no checksum"),
    ],
)
def test_a_damaged_result_is_refused_with_one_sentence(tmp_path, change, message):
    written(tmp_path, 4).close()
    result = RunFolder(tmp_path).result
    if isinstance(change, str):
        result.write_text(change)
    else:
        tree = {**json.loads(result.read_text()), **change}
        result.write_text(json.dumps({k: v for k, v in tree.items() if v is not None}))
    with pytest.raises(UserError, match=message) as raised:
        RunFolder(tmp_path).read()
    assert "\n" not in str(raised.value)


def test_a_result_of_a_later_version_is_refused(tmp_path):
    written(tmp_path, 4).close()
    result = RunFolder(tmp_path).result
    head = json.loads(result.read_text())
    rounds = head.pop("rounds")
    result.write_text(json.dumps({**sealed({**unsealed(head), "schema": 5}), "rounds": rounds}))
    with pytest.raises(UserError, match="it has schema 5, and this version reads up to 4"):
        RunFolder(tmp_path).read()


def test_a_number_that_is_not_finite_is_never_written(tmp_path):
    writer = written(tmp_path, 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.append(replace(round_(1), metrics={"train_loss": float("nan")}), Costs())
    writer.close()
    assert RunFolder(tmp_path).read().done == 0


# --- a result of the first version ---------------------------------------------------------------


@pytest.fixture
def old(tmp_path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    shutil.copy(FIRST_VERSION, folder / "result.json")
    return folder


def test_a_result_of_the_first_version_is_read(old):
    run = RunFolder(old).read()
    assert (run.info.algorithm, run.done, run.info.planned) == ("fedavg", 1, 1)
    assert run.info.config["algorithm"] == {"name": "fedavg"}
    assert run.best.local_accuracy == run.value("local_accuracy", "best")
    assert run.rounds[1].up.total_bytes == 146052
    assert run.rounds[1].per_client[1] == 0.36363636363636365
    assert run.info.metric("local_accuracy").is_share
    assert run.info.metric("global_accuracy").is_share
    assert run.info.metric("train_loss").direction == "min"
    assert not run.info.metric("local_accuracy_jain").is_share


def test_a_result_of_the_first_version_opens_in_the_report(old, capsys):
    (member,), notes = group(load([old]))
    assert (member.label, notes) == ("fedavg", [])
    assert report([str(old)]) == 0
    assert "18.79" in capsys.readouterr().out
    assert report([str(old), "--metric", "train_loss"]) == 0
    assert "1.667" in capsys.readouterr().out


def test_of_several_families_the_longest_says_what_a_metric_means():
    every, domains = Metric("accuracy_{name}"), Metric("accuracy_in_{domain}", "index")
    for declared in ([every, domains], [domains, every]):
        assert find_metric("accuracy_in_art", declared) == domains
        assert find_metric("accuracy_art", declared) == every


def test_a_value_is_the_best_in_its_metrics_direction_or_the_last():
    values = [0.5, 0.2, 0.7, 0.3]
    run = Run(
        INFO,
        [Round(n, 1.0, {"train_loss": v, "local_accuracy": v}) for n, v in enumerate(values)],
    )
    assert run.value("train_loss", "best") == 0.2
    assert run.value("local_accuracy", "best") == 0.7
    assert run.value("train_loss", "final") == run.value("local_accuracy", "final") == 0.3
    assert run.value("dice", "best") is None


def test_what_an_interrupted_run_cost_is_kept_when_the_next_one_is_killed_at_once(tmp_path):
    written(tmp_path, 3)  # never closed
    folder = RunFolder(tmp_path)
    RunWriter(folder, INFO, folder.read())  # nor this one, before its first round
    assert folder.read().costs == Costs(2.0, 2.0, 1000)


def test_names_of_the_first_version_are_read_as_components(old):
    config = RunFolder(old).read().info.config
    assert config["data"]["source"] == {"name": "digits"}
    assert config["data"]["augment"] == {"name": "none"}
    assert config["text"]["style"] == {"name": "fine"}
    assert config["text"]["encoder"] == {"name": "minilm"}
    assert config["data"]["samples"] == 120
