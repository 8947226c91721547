"""Runs for the tests of tracking, and a look into MLflow."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from written_runs import write_whole

from fedray.config import Experiment
from fedray.storage.environment import Environment
from fedray.storage.run import Costs, Round, Run, RunInfo, Traffic

STARTED = datetime(2026, 11, 25, 9, 30, tzinfo=UTC)


def make_round(round_: int, seconds: float = 2.0) -> Round:
    return Round(
        round=round_,
        seconds=seconds,
        metrics={"local_accuracy": 0.1 * round_, "train_loss": 1.0 / (1 + round_)}
        | {"local_accuracy_weighted": 0.1},
        per_client={0: 0.1, 1: 0.2 * round_, 10: 0.3},
        up=Traffic(
            {"prototypes": 15, "weights": 10}, {"prototypes": 60 * round_, "weights": 40 * round_}
        ),
        down=Traffic({"prototypes": 5}, {"prototypes": 10 * round_}),
        participants=[0, 1],
        absent=[1],
    )


def make_run(rounds: int, of: int | None = None, seed: int = 0) -> Run:
    experiment = Experiment(name="digits", rounds=of or rounds, seed=seed)
    info = RunInfo(
        config=experiment.tree(),
        identity=experiment.identity("data"),
        environment=Environment({"torch": "2.15.0", "git": "abc"}),
        partition_sha256="f" * 64,
        data_sha256="d" * 64,
        started=STARTED,
    )
    # every line has the costs: those of all rounds, so that a later run begins with the same lines
    costs = Costs(wall_seconds=2.0 * ((of or rounds) + 1))
    return Run(info, [make_round(r) for r in range(rounds + 1)], costs)


def write_run(folder: Path, run: Run) -> Path:
    write_whole(folder, run)
    return folder


class Held:
    """What a store holds."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)

    def runs(self, experiment: str) -> list[Any]:
        found = self.client.get_experiment_by_name(experiment)
        return [] if found is None else list(self.client.search_runs([found.experiment_id]))

    def run(self, experiment: str = "digits") -> Any:
        (only,) = self.runs(experiment)
        return only

    def history(self, run: Any, name: str) -> list[tuple[int, float]]:
        points = self.client.get_metric_history(run.info.run_id, name)
        return sorted((point.step, point.value) for point in points)

    def artifact(self, run: Any, path: str) -> str:
        return Path(self.client.download_artifacts(run.info.run_id, path)).read_text()

    def artifacts(self, run: Any, folder: str | None = None) -> set[str]:
        return {item.path for item in self.client.list_artifacts(run.info.run_id, folder)}

    def assert_every_metric_once_per_round(self, run: Any, rounds: range) -> None:
        assert "time/seconds" in run.data.metrics
        for name in run.data.metrics:
            steps = [step for step, _ in self.history(run, name)]
            assert steps == list(rounds), name


def wait_until(true: Callable[[], object], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
