"""Seconds per client, the best round, the first round that reaches a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commands import analyse as main
from rounds import rounds_in

from fedray.results.analyses.target import client_seconds, first_round
from fedray.results.frame import LoadedRun
from fedray.run import main as fedray_run
from fedray.storage.environment import Environment
from fedray.storage.metric import Metric
from fedray.storage.run import MEASURED_SECONDS, Round, Run, RunInfo, Traffic
from fedray.tracking.describe import metrics_of

ACCURACY = Metric("local_accuracy")


def loaded(accuracies, seconds) -> LoadedRun:
    rounds = [
        Round(n, 1.0, {"local_accuracy": a}, up=Traffic({"w": 1}, {"w": 5e5}), client_seconds=s)
        for n, (a, s) in enumerate(zip(accuracies, seconds, strict=True))
    ]
    info = RunInfo(
        config={"rounds": len(rounds) - 1, "report": {"select": "test"}},
        identity="i",
        environment=Environment(),
        partition_sha256=None,
        data_sha256=None,
        metrics=(ACCURACY,),
    )
    return LoadedRun(Path("nowhere"), Run(info, rounds))


def test_numbers_by_hand():
    run = loaded([0.1, 0.5, 0.7, 0.7, 0.6], [9.0, 1.0, 2.0, 3.0, None])
    assert run.run.best_round(ACCURACY.name) == 2
    assert first_round(run, ACCURACY, 0.5) == 1
    assert first_round(run, ACCURACY, 0.71) is None
    assert client_seconds(run) == [1.0, 2.0, 3.0]  # what precedes round 1 is left out
    assert client_seconds(run, until=2) == [1.0, 2.0]
    assert client_seconds(loaded([0.1, 0.2], [None, None])) == []
    loss = Metric("local_accuracy", direction="min")
    assert first_round(run, loss, 0.1) == 0


def test_a_round_without_clients_has_no_seconds_of_theirs():
    timed = Round(1, 2.0, {"local_accuracy": 0.5}, client_seconds=0.25)
    assert metrics_of(timed)["time/client_seconds"] == 0.25
    assert "time/client_seconds" not in metrics_of(replace(timed, client_seconds=None))


def test_a_run_measures_them_and_they_are_no_part_of_what_is_the_same(tmp_path, capsys):
    keys = [
        *("fedavg_digits", "--executor", "serial", "--no-track", "rounds=2", "local_epochs=1"),
        *("model.group=mlp", "model.feature_dim=16", "data.clients=3", "data.samples=120"),
    ]
    for name in ("one", "two"):
        assert fedray_run([*keys, "--out", str(tmp_path / name)]) == 0
    rounds = [rounds_in(tmp_path / n) for n in ("one", "two")]
    assert [(record["client_seconds"] or 0) > 0 for record in rounds[0]] == [False, True, True]
    for record in (*rounds[0], *rounds[1]):
        for key in MEASURED_SECONDS:
            record.pop(key, None)
    assert rounds[0] == rounds[1]
    capsys.readouterr()
    assert (
        main(["target", str(tmp_path / "one"), "--target", "0.01", "--out", str(tmp_path / "out")])
        == 0
    )
    (line,) = (tmp_path / "out" / "target.md").read_text().splitlines()[2:3]
    assert line.startswith("| fedavg | 1 | ")
    assert main(["target", str(tmp_path / "one"), "--target", "much"]) == 2
    assert "'much' is not a valid float" in capsys.readouterr().err
