"""Whole small tables through Ray and MLflow: once undisturbed, once killed and resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import upload

from fedray.results.paired import Side
from fedray.results.record import TableRecord
from fedray.table import main

ROOT = Path(__file__).parents[2]
SMALL = {"report": {"seeds": [0, 1]}, "tuning": {"configurations": 3, "rounds": 1}}
FIVE_LINES = """\
answers: Does pulling to prototypes help more with a weight of three?
rows:
  mine: {algorithm: {name: fedproto, lambda: 3}}
tuning: {configurations: 3, rounds: 1}
report: {seeds: [0, 1], rounds: 2}
"""
MADE = ("when", "command", "shared")
"""What two invocations of a table may differ in."""

UNEQUAL_TAGS = ("mlflow.parentRunId", "mlflow.note.content", "phase")


def told(home: Path) -> dict:
    """table.json without what depends on when and how fast it was made."""
    text = (home / "table.json").read_text()
    for results in ("killed", "undisturbed"):  # where a traceback is kept
        text = text.replace(f"/{results}/", "/results/")
    tree = json.loads(text)
    del tree["checksum"]
    tree["made"] = {key: value for key, value in tree["made"].items() if key not in MADE}
    for run in tree["runs"].values():
        run.pop("seconds", None)
    return tree


def shown(run) -> tuple:
    """What two databases hold of one run."""
    tags = {key: value for key, value in run.data.tags.items() if key not in UNEQUAL_TAGS}
    return str(sorted(tags.items())), run.info.run_name, run.info.status, str(run.data.metrics)


@pytest.mark.ray
@pytest.mark.slow
def test_five_lines_are_a_table_with_three_baselines(here, empty_database, capsys):
    from mlflow import MlflowClient

    (here / "tune" / "tables" / "mine.yaml").write_text(FIVE_LINES)
    (here / "results").mkdir()
    shutil.copy(empty_database, here / "results" / "mlflow.db")
    words = ["mine", "data.samples=300"]
    assert main([*words, "--out", "first"]) == 0
    tree = told(here / "first")
    rows = ["mine", "local", "fedavg", "fedproto"]
    assert [(cell["row"], cell["phase"]) for cell in tree["cells"]] == [(r, "over") for r in rows]
    assert all(len(cell["tried"]) == 3 for cell in tree["cells"])
    claims = TableRecord.read(here / "first" / "table.json").claims
    assert [each.claim.question for each in claims] == [f"mine > {row}" for row in rows[1:]]
    assert {each.verdict for each in claims} <= {"holds", "refuted", "undecided"}
    assert {run["round"] for run in tree["runs"].values()} <= {1, 2}
    assert not list((here / "results" / "store").glob("*/states"))
    assert json.loads((here / "first" / "plan.json").read_text())["status"] == "finished"

    assert upload([str(here / "first")]) == 0  # what the child that follows may still lack
    client = MlflowClient(f"sqlite:///{here / 'results' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    assert {run.info.status for run in runs} == {"FINISHED"}
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert parent.info.run_name == "mine-first"
    source = parent.data.tags["mlflow.source.name"]
    assert source == "python -m fedray.table mine data.samples=300"
    children = [run for run in runs if run is not parent]
    assert len(children) == len(tree["runs"])
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.data.tags["row"] for run in children} == set(rows)
    record = TableRecord.read(here / "first" / "table.json")
    for row in rows:
        mean = record.numbers.interval(Side(row, "all"), "local_accuracy").mean / 100
        assert parent.data.metrics[f"{row}/local_accuracy"] == pytest.approx(mean)

    other = f"sqlite:///{shutil.copy(empty_database, here / 'other.db')}"
    for said in ("added", "nothing was missing"):
        capsys.readouterr()
        assert upload(["first", "--uri", other]) == 0
        assert said in capsys.readouterr().out
    place = MlflowClient(other).get_experiment_by_name("mine").experiment_id
    uploaded = MlflowClient(other).search_runs([place], max_results=100)
    assert sorted(map(shown, uploaded)) == sorted(map(shown, runs))

    capsys.readouterr()
    assert main([*words, "--out", "again"]) == 0
    assert told(here / "again") == tree
    assert "of them existed before" in capsys.readouterr().out
    again = client.search_runs([experiment.experiment_id], max_results=100)
    [new] = [run for run in again if run.info.run_id not in {each.info.run_id for each in runs}]
    assert (new.info.run_name, new.info.status) == ("mine-again", "FINISHED")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_table_that_is_killed_again_and_again_is_the_undisturbed_one(here, write):
    rows = {"mine": {"algorithm": "fedproto", "space": {"lr": {"grid": [0.0001, 100]}}}}
    write(**SMALL, rows=rows, set={"rounds": 4})  # at lr=100 reports diverge in their second round
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}

    def command(results: str, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "fedray.table", "tiny", "--no-track", *words],
            cwd=here,
            env={**environment, "FEDRAY_RESULTS": str(here / results)},
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    assert command("undisturbed", "--out", "whole").wait(900) == 0
    kills = 0
    while kills < 3:
        process = command("killed", "--out", "cut")
        there = rounds_there(here)
        deadline = time.monotonic() + 900
        while rounds_there(here) < there + 5 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills
    assert command("killed", "--out", "cut").wait(900) == 0
    assert told(here / "cut") == told(here / "whole")
    (mine, _) = told(here / "whole")["cells"]
    assert mine["phase"] == "over"


def rounds_there(here: Path) -> int:
    """How many rounds the runs have done so far."""
    return sum(
        len(file.read_bytes().splitlines())
        for file in (here / "killed").glob("store/*/rounds.jsonl")
    ) + 5 * len(list((here / "killed").glob("store/*/run.json")))
