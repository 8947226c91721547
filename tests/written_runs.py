"""Runs of which only the result and the configuration are there."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedray.config import Experiment, override
from fedray.results.frame import RunGroup, group_runs, load_runs
from fedray.storage.environment import Environment
from fedray.storage.metric import Metric
from fedray.storage.run import Round, Run, RunInfo, Traffic
from fedray.storage.run_folder import RunFolder, RunWriter

Tree = dict[str, Any]

ACCURACY = Metric("local_accuracy")
LOSS = Metric("train_loss", "nats", "min", "train")


def write_run(
    folder: Path,
    accuracies: list[float],
    changes: Mapping[str, Any] | None = None,
    *,
    partition: str | None = None,
    data: str | None = "same",
    files: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    bytes_: int = 1_000_000,
    rounds: int | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """A run's folder, with one accuracy per round from 0 on."""
    planned = len(accuracies) - 1 if rounds is None else rounds
    tree: Tree = {"name": folder.name, "rounds": max(planned, 1), "algorithm": "fedtsp"}
    tree["data"] = {"partition": "fedtsp_dirichlet"}
    for key, value in (changes or {}).items():
        tree = override(tree, [(key, value)])
    tree.setdefault("report", {"select": "test"})
    experiment = Experiment.model_validate(tree)
    info = RunInfo(
        config=experiment.tree(),
        identity=sha256(f"{experiment.model_dump_json()}{data}".encode()).hexdigest(),
        environment=Environment(versions or {}),
        partition_sha256=partition or f"partition-{experiment.seed}",
        data_sha256=data,
        files_sha256=files or {},
        metrics=(ACCURACY, Metric("local_accuracy_{how}"), LOSS),
    )
    done = [
        Round(
            round=r,
            seconds=1.0,
            metrics={"local_accuracy": x, "local_accuracy_weighted": x, **(metrics or {})},
            per_client={0: x},
            up=Traffic(bytes={"weights": bytes_ if r else 0}),
            down=Traffic(bytes={"weights": 2 * bytes_ if r else 0}),
        )
        for r, x in enumerate(accuracies)
    ]
    write_whole(folder, Run(info, done))
    return folder


def write_whole(folder: Path, run: Run) -> None:
    """Write the files of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {"sha256": run.info.partition_sha256, "images_sha256": run.info.data_sha256}
    writer = RunWriter(RunFolder(folder), run.info, hashes)
    for done in run.rounds:
        writer.append(done, run.costs)
    if run.is_finished:
        writer.end()
    writer.close()


def groups_in(folder: Path) -> dict[str, RunGroup]:
    groups, notes = group_runs(load_runs([folder]))
    assert notes == []
    return {member.label: member for member in groups}


def write_partition(folder: Path, partition: Mapping[str, Any]) -> None:
    """Write the assignment of images to clients into the run.json of a run."""
    files = RunFolder(folder)
    files.write_head(files.read_head(), {**files.partition(), **partition})
