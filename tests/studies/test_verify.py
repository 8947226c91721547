"""Runs that are made again, and two runs beside each other."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import commands
import pytest
from pretended_runs import publish
from written_runs import write_whole

from fedray.results.difference import Gap, gaps, verdict
from fedray.storage.environment import Environment
from fedray.storage.files import sealed, unsealed
from fedray.storage.run_folder import RunFolder, find_run_folders

ONE, OTHER = "a processor (AVX2)", "a processor (AVX512)"


@pytest.mark.parametrize(
    ("then", "now", "size"),
    [(0.5, 0.52, 0.02), (2.0, 2.5, 0.2), (-4.0, 4.0, 2.0), (None, 0.5, float("inf"))],
)
def test_a_difference_above_one_is_a_part_of_the_larger_number(then, now, size):
    assert Gap(1, "loss", then, now).size == pytest.approx(size)


@pytest.mark.parametrize(
    ("found", "inputs", "hardware", "holds", "first"),
    [
        ([], [], ONE, True, "equal bit for bit"),
        ([Gap(2, "m", 0.5, 0.51)], [], OTHER, True, "equal within 0.02 on another class"),
        ([Gap(2, "m", 0.5, 0.51)], [], "", True, "equal within 0.02 on another class"),
        ([Gap(2, "m", 0.5, 0.53)], [], OTHER, False, "different: the first difference is m in r"),
        ([Gap(2, "m", 0.5, 0.51)], [], ONE, False, "different: the first difference is m in r"),
        ([Gap(2, "up")], [], OTHER, False, "different: the first difference is up in round 2"),
        ([], ["the partition: a, now b"], OTHER, False, "different: the partition: a, now b"),
    ],
)
def test_a_run_is_equal_or_explained_or_different(found, inputs, hardware, holds, first):
    then, now = Environment(hardware=hardware), Environment(hardware=ONE)
    judged = verdict(found, inputs, then, now)
    assert judged.holds is holds
    assert judged.lines[0].startswith(first)


def changed(run, number, **changes):
    """A run whose round has other metrics or another record."""
    metrics = changes.pop("metrics", {})
    rounds = [
        replace(done, metrics={**done.metrics, **metrics}, **changes)
        if done.round == number
        else done
        for done in run.rounds
    ]
    return replace(run, rounds=rounds)


def test_the_first_difference_is_that_of_the_first_round(here, play):
    play(lambda wanted: [(0.1, 0.1), (0.4, 0.5), (0.6, 0.7)])
    run = RunFolder(find_run_folders([here / "store"])[0]).read()
    assert gaps(run, run) == []
    later = changed(changed(run, 1, participants=[7]), 2, metrics={"local_accuracy": 0.0})
    value = run.rounds[2].metrics["local_accuracy"]
    assert gaps(run, later) == [
        Gap(1, "participants"),
        Gap(2, "local_accuracy", value, 0.0),
    ]
    assert gaps(run, run.until(1)) == [Gap(2, "the end of one run")]


@pytest.fixture
def made(here):
    """The folder of a real run."""
    assert commands.run(["tiny.yaml", "--executor", "serial", "--no-track", "--out", "made"]) == 0
    return RunFolder(here / "made")


def test_a_run_is_made_again(made, here, capsys):
    assert commands.verify(["made"]) == 0
    assert "equal bit for bit" in capsys.readouterr().out
    assert not any((here / "results" / "verify").iterdir())


def test_an_edited_number_is_found(made, capsys):
    write_whole(made.path, changed(made.read(), 1, metrics={"local_accuracy": 0.99}))
    assert commands.verify(["made"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"different: .* local_accuracy in round 1: 0\.99, now 0\.\d+", text)
    assert "the environment is the same" in text


def test_another_processor_explains_last_digits_and_no_more(made, capsys):
    run = made.read()
    environment = replace(run.info.environment, hardware="AVX1024")
    run = replace(run, info=replace(run.info, environment=environment))
    value = run.rounds[2].metrics["local_accuracy"]
    write_whole(made.path, changed(run, 2, metrics={"local_accuracy": value + 0.001}))
    assert commands.verify(["made"]) == 0
    text = capsys.readouterr().out
    assert "equal within 0.02" in text
    assert "hardware AVX1024, now " in text


def test_two_runs_are_compared(made, here, capsys):
    words = ["tiny.yaml", "lr=0.06", "--executor", "serial", "--no-track", "--out", "other"]
    assert commands.run(words) == 0
    capsys.readouterr()
    assert commands.diff(["made", "other"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "experiment:",
        "  lr: 0.05, now 0.06",
        "inputs: the same",
        "environment: the same",
    ]
    assert " in round 1: " in lines[5]
    assert commands.diff(["made", "made"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "numbers: the same"


def test_the_runs_of_a_table_are_made_again(here, play, capsys):
    """First the pretended numbers are found, then those that the new run has are confirmed."""
    study = play(lambda wanted: [(0.1, 0.1), (0.4, 0.5), (0.6, 0.7)])
    publish(study)
    assert commands.verify(["out", "--sample", "1"]) == 1
    text = capsys.readouterr().out
    assert "different: the partition: p" in text
    name = re.search(r"^(\w+), seed (\d+): 2 rounds", text, re.MULTILINE)
    run = RunFolder(next((here / "results" / "verify").iterdir())).read()
    tree = unsealed(json.loads((here / "out" / "table.json").read_text()))
    cell = next(cell for cell in tree["cells"] if cell["row"] == name[1])
    entry = tree["runs"][cell["reported"][name[2]]]
    metrics = run.rounds[-1].metrics
    entry |= {
        "values": {name: metrics[name] for name in entry["values"]},
        "choice": metrics["validation/local_accuracy"],
        "partition": run.info.partition_sha256,
        "data": run.info.data_sha256,
    }
    (here / "out" / "table.json").write_text(json.dumps(sealed(tree)))
    assert commands.verify(["out", "--sample", "1"]) == 0
    assert "equal bit for bit" in capsys.readouterr().out


def test_what_is_no_run_is_not_compared(made, capsys):
    for words in (["nowhere", "made"], ["made", "fedavg_digits"]):
        assert commands.diff(words) == 2
        assert "holds no run.json; pass the folders of two runs" in capsys.readouterr().err


def test_a_folder_without_numbers_is_refused(here, capsys):
    assert commands.verify(["."]) == 2
    assert commands.diff([".", "."]) == 2
