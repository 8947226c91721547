"""The description of a run or study in MLflow: name, params, tags, metrics, data; and its key."""

from __future__ import annotations

import getpass
import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedray.base.units import size_of
from fedray.config import EXPERIMENTS, flatten
from fedray.storage.metric import BEST, HEADLINE, REPORTED, VALIDATION
from fedray.storage.run import Round, Run, RunInfo, Status, data_name
from fedray.storage.run_folder import RunFolder

RunStatus: TypeAlias = Status | Literal["RUNNING"]

MAX_NAME = 250
"""MLflow's limit on characters of the name of a param, tag or metric."""
METHOD_TAG, DATA_TAG, SEED_TAG = "fedray.method", "fedray.data", "fedray.seed"
"""Tags that identify runs; the name of a run consists of the same three values."""
BEST_METRIC = f"best/{HEADLINE}"
"""Metric of a run that has ended: the accuracy in its best round."""
ARTIFACT = "artifact:"
"""Prefix of a file's name in a description, replaced by the artifact's address."""
SECONDS = "time/seconds"
"""A metric that every round has."""
TOTALS = ("traffic/total_up_bytes", "traffic/total_down_bytes", "time/total_seconds")
"""Metrics of a round, summed over the rounds up to it."""
_SCORES = re.compile(r"accuracy|dice|f1")
_OVER_CLIENTS = re.compile(r"_(std|jain|worst\d+|best\d+)$")


def run_name(info: RunInfo) -> str:
    """Return the name of a run, "fedtsp digits seed 0"."""
    return f"{info.algorithm} {data_name(info.config)} seed {info.seed}"


def experiment_name(info_name: str, config: Mapping[str, Any]) -> str:
    """Return the MLflow experiment of a run that belongs to no study.

    Runs of shipped experiments are grouped by their data, so that methods can be compared. The
    name of a user's experiment is not changed.
    """
    if (EXPERIMENTS / f"{info_name}.yaml").is_file():
        return f"methods on {data_name(config)}"
    return info_name


def describe_run(info: RunInfo) -> tuple[dict[str, str], dict[str, str]]:
    """Return the params of a run, its complete configuration by dotted key, and its tags.

    The tag `select` names the images that select the best round; the tag `chosen` is only set if
    these are the test images.
    """
    tags = {
        METHOD_TAG: info.algorithm,
        DATA_TAG: data_name(info.config),
        SEED_TAG: str(info.seed),
        "scale": info.config["scale"],
        "select": info.select,
        **({"chosen": BEST["test"]} if info.select == "test" else {}),
        "fedray.identity": info.identity,
    }
    hashes = {"partition_sha256": info.partition_sha256, "data_sha256": info.data_sha256}
    tags |= {name: value for name, value in hashes.items() if value is not None}
    tags |= {
        f"version.{name}": text for name, text in info.environment.versions.items() if name != "git"
    }
    tags |= source_tags(f"fedray run {info.name}", info.environment.versions)
    return as_params(flatten(info.config)), tags


def source_tags(command: str, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of MLflow's columns for user, source (`command`) and commit."""
    tags = {"mlflow.source.name": command, "mlflow.source.type": "LOCAL"}
    with suppress(OSError, KeyError):  # a container's user may have no name
        tags["mlflow.user"] = getpass.getuser()
    described = versions.get("git")
    if described is not None:
        clean = described.removesuffix("-dirty")
        tags["mlflow.source.git.commit"] = re.sub(r"^.*-g(?=[0-9a-f]+$)", "", clean)
        tags["mlflow.source.git.dirty"] = str(clean != described).lower()
    return tags


def as_params(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as MLflow params: strings unchanged, others as JSON. MLflow cuts long ones."""
    return {
        valid_name(key): value
        if isinstance(value, str) and value
        else json.dumps(value, default=str)
        for key, value in values.items()
    }


def valid_name(name: str) -> str:
    """Return a name that MLflow accepts: at most 250 characters of [A-Za-z0-9_./ -].

    A changed name ends with a hash, so that names stay distinct.
    """
    cleaned = posixpath.normpath(re.sub(r"[^A-Za-z0-9_./ -]", "_", name)).lstrip("./ ")
    if cleaned == name and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{cleaned[: MAX_NAME - 9]}-{digest}"


def grouped(name: str) -> str:
    """Return the name in MLflow of the metric that a run calls `name`.

    MLflow's chart view groups metrics by the part before the last `/`, and sorts the groups by
    name. The groups are named so that the headline metric comes first, then other accuracies.
    """
    if name == HEADLINE or name.startswith(VALIDATION):
        return f"accuracy/{valid_name(name)}"
    if name.startswith(REPORTED):
        return valid_name(name)
    if name.endswith("loss"):
        section = "loss"
    elif not _SCORES.search(name):
        section = "measured"
    else:
        section = "accuracy/over clients" if _OVER_CLIENTS.search(name) else "accuracy/others"
    return valid_name(f"{section}/{name}")


def metrics_of(done: Round) -> dict[str, float]:
    """Return the metrics of one round: `accuracy/local_accuracy`, `traffic/up_bytes` and so on.

    Metrics of single clients are left out; the artifact rounds.jsonl has them.
    """
    names = sorted(done.metrics, key=lambda name: name != HEADLINE)  # MLflow keeps the order
    metrics = {grouped(name): done.metrics[name] for name in names}
    for way, sent in (("up", done.up), ("down", done.down)):
        for unit, by_kind in (("bytes", sent.bytes), ("params", sent.params)):
            metrics[f"traffic/{way}_{unit}"] = float(sum(by_kind.values()))
            for kind, value in by_kind.items():
                metrics[valid_name(f"traffic/by kind/{way}_{unit}_{kind}")] = float(value)
    metrics[SECONDS] = done.seconds
    if done.client_seconds is not None:
        metrics["time/client_seconds"] = done.client_seconds
    metrics["round/absent"] = float(len(done.absent))
    if done.participants:
        metrics["round/participants"] = float(len(done.participants))
    return metrics


def totals_of(rounds: Iterable[Round]) -> Iterator[tuple[Round, dict[str, float]]]:
    """Yield each round with the `TOTALS` up to it: bytes up, bytes down and seconds."""
    sums = [0.0, 0.0, 0.0]
    for done in rounds:
        sums[0] += done.up.total_bytes
        sums[1] += done.down.total_bytes
        sums[2] += done.seconds
        yield done, dict(zip(TOTALS, sums, strict=True))


def run_note(done: Run) -> str:
    """Return the description of a run: method, data, accuracy, traffic."""
    info, final, best = done.info, done.final, done.best
    data = info.config["data"]
    up = sum(round_.up.total_bytes for round_ in done.rounds)
    down = sum(round_.down.total_bytes for round_ in done.rounds)
    suffix = "" if (scale := info.config["scale"]) == "laptop" else f" [{scale} scale]"
    lines = [
        f"**{info.algorithm}** on **{data_name(info.config)}**: {data['clients']} clients, "
        f"partition `{data['partition']['name']}`, {max(done.done, 0)} of {info.planned} rounds, "
        f"seed {info.seed}{suffix}."
    ]
    if best is not None:
        value, label = f"{100 * best.local_accuracy:.2f} %", BEST[info.select]
        lines.append(f"Local accuracy **{value}** in round {best.round} ({label}).")
    if final is not None:
        lines.append(f"Local accuracy in the last round: {100 * final.local_accuracy:.2f} %.")
    lines.append(f"Sent: up {size_of(up)}, down {size_of(down)}.")
    lines.append("Repeat: `python -m fedray.run run.json`, with the file from the artifacts.")
    return "\n\n".join(lines)


def data_of(info: RunInfo) -> dict[str, str] | None:
    """Return the MLflow dataset of a run: its images and their partition, with hashes of both.

    None before the data has been hashed.
    """
    if info.data_sha256 is None or info.partition_sha256 is None:
        return None
    data = info.config["data"]
    hashes = {"data_sha256": info.data_sha256, "partition_sha256": info.partition_sha256}
    profile = {"clients": data["clients"], "partition": data["partition"], **hashes}
    return {
        "name": data_name(info.config),
        "digest": f"{info.data_sha256[:12]}-{info.partition_sha256[:12]}",  # 36 characters at most
        "source": json.dumps({"source": data["source"], "uri": str(data.get("root") or "")}),
        "profile": json.dumps(profile, default=str),
    }


@dataclass(frozen=True)
class TrackedRun:
    """The content of a run in MLflow.

    Attributes:
        key: identifies the run, wherever its folder is.
        name: the displayed name.
        experiment: the MLflow experiment.
        params: configuration by dotted key, within MLflow's limits.
        tags: values by name.
        status: RUNNING, or how the run ended.
        started_ms: start in milliseconds since the epoch.
        seconds: duration; None: until now.
        rounds: all rounds so far.
        data: name, digest, source and profile of the MLflow dataset; None while it is unknown.
        metrics: numbers by name, written once the run has ended, as are files and note.
        files: artifacts, which need not exist.
        note: description in Markdown; `artifact:NAME` is replaced by the artifact's address.
    """

    key: str
    name: str
    experiment: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    status: RunStatus
    started_ms: int
    seconds: float | None = None
    rounds: Sequence[Round] = ()
    data: Mapping[str, str] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Sequence[Path] = ()
    note: str = ""

    @property
    def ended_ms(self) -> int | None:
        """Return when the run ended or will have ended; None if its duration is unknown."""
        return None if self.seconds is None else self.started_ms + round(1000 * self.seconds)


def tracked_run(folder: Path, going: bool = False) -> TrackedRun:
    """Read a run's folder and return the run's content in MLflow.

    Args:
        folder: the run's folder.
        going: whether a process executes the run.

    Raises:
        UserError: if the folder cannot be read.
    """
    files = RunFolder(folder)
    run = files.read()
    info, best = run.info, run.best
    params, tags = describe_run(info)
    tags |= {"fedray.folder": folder.name, "mlflow.source.name": f"fedray run {files.head}"}
    started = info.started.timestamp() if info.started is not None else 0.0
    ended: RunStatus = "FAILED" if files.error.is_file() else "KILLED"
    return TrackedRun(
        key=f"{info.identity[:16]}-{round(1e6 * started):x}",
        name=run_name(info),
        experiment=experiment_name(info.name, info.config),
        params=params,
        tags=tags,
        status="FINISHED" if run.is_finished else "RUNNING" if going else ended,
        started_ms=round(1000 * started),
        seconds=run.costs.wall_seconds,
        rounds=run.rounds,
        data=data_of(info),
        metrics={BEST_METRIC: best.local_accuracy, "best/round": best.round} if best else {},
        files=[files.head, files.rounds_file, files.matrices_file, files.error],
        note=run_note(run),
    )
