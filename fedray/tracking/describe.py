"""The description of a run in MLflow: name, params, tags, metrics, data; and the run's key."""

from __future__ import annotations

import getpass
import hashlib
import json
import posixpath
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedray.config import EXPERIMENTS, flatten
from fedray.errors import UserError
from fedray.masking import mask
from fedray.storage.files import read_regular, write_json
from fedray.storage.metric import BEST, HEADLINE, REPORTED, VALIDATION
from fedray.storage.run import Round, Run, RunInfo, Status, Traffic, data_name
from fedray.units import size_of

RunStatus: TypeAlias = Status | Literal["RUNNING"]

MAX_NAME = 250
"""MLflow's limit on characters of the name of a param, tag or metric."""
MAX_PARAM = 6000
"""MLflow's limit on characters of a param's value (500 before MLflow 2.9)."""
MAX_TAG = 8000
"""MLflow's limit on characters of a tag's value."""

IDENTITY_TAG = "fedray.identity"
"""Tag with the hash of everything that determines the numbers."""
METADATA = "tracking.json"
"""File in a run's folder with its key and its names in MLflow, for later uploads."""
URI = "uri"
"""Key of the tracking URI, without secrets, in that file."""
METHOD_TAG, DATA_TAG, SEED_TAG = "fedray.method", "fedray.data", "fedray.seed"
"""Tags that identify runs; the name of a run consists of the same three values."""
FOLDER_TAG = "fedray.folder"
"""Tag with the name of the run's folder."""
NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow shows as the description, in Markdown."""
MAX_RUN_NAME = 30
"""Characters of a run's name that MLflow's table shows."""
BEST_METRIC, BEST_ROUND = f"best/{HEADLINE}", "best/round"
"""Metrics of a run that has ended: its best round and the accuracy there."""
ARTIFACT = "artifact:"
"""Prefix of a file's name in a description, replaced by the artifact's address."""
VIEW_LINK = "(view:)"
"""Target of a link in a description, replaced by the address of the run's saved view."""


# --- names ---------------------------------------------------------------------------------------


def run_name(info: RunInfo) -> str:
    """Return the name of a run, "fedtsp digits seed 0"; shorten the data to fit `MAX_RUN_NAME`."""
    method, data, seed = info.algorithm, data_name(info.config), f"seed {info.seed}"
    room = MAX_RUN_NAME - len(f"{method}  {seed}")
    data = data if len(data) <= room else f"{data[: max(room - 1, 1)]}…"
    return f"{method} {data} {seed}"


def experiment_name(info_name: str, config: Mapping[str, Any]) -> str:
    """Return the MLflow experiment of a run that belongs to no study.

    Runs of shipped experiments are grouped by their data, so that methods can be compared. The
    name of a user's experiment is not changed.
    """
    if (EXPERIMENTS / f"{info_name}.yaml").is_file():
        return f"methods on {data_name(config)}"
    return info_name


# --- params and tags -----------------------------------------------------------------------------


def describe_run(info: RunInfo) -> tuple[dict[str, str], dict[str, str]]:
    """Return the params of a run, its complete configuration by dotted key, and its tags.

    The tag `select` names the images that select the best round; the tag `chosen` is only set if
    these are the test images.
    """
    tags = {
        METHOD_TAG: info.algorithm,
        DATA_TAG: data_name(info.config),
        SEED_TAG: str(info.seed),
        "scale": info.scale,
        "select": info.select,
        **({"chosen": BEST["test"]} if info.select == "test" else {}),
        IDENTITY_TAG: info.identity,
    }
    hashes = {"partition_sha256": info.partition_sha256, "data_sha256": info.data_sha256}
    tags |= {name: value for name, value in hashes.items() if value is not None}
    for package, version in info.versions.items():
        if package != "git":
            tags[f"version.{package}"] = version
    return as_params(flatten(info.config)), {
        **tags,
        **source_tags(f"fedray run {info.name}", info.versions),
    }


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
    """Return values as MLflow params within MLflow's limits: strings unchanged, others as JSON."""
    texts = {
        key: value if isinstance(value, str) and value else json.dumps(value, default=str)
        for key, value in values.items()
    }
    return {valid_name(key): shorten(text) for key, text in texts.items()}


def shorten(value: str, limit: int = MAX_PARAM) -> str:
    """Return `value` in at most `limit` characters; a cut value ends with its original length."""
    if len(value) <= limit:
        return value
    end = f"... ({len(value)} characters)"
    return value[: limit - len(end)] + end


def valid_name(name: str) -> str:
    """Return a name that MLflow accepts: at most 250 characters of [A-Za-z0-9_./ -].

    A changed name ends with a hash, so that names stay distinct.
    """
    cleaned = posixpath.normpath(re.sub(r"[^A-Za-z0-9_./ -]", "_", name)).lstrip("./ ")
    if cleaned == name and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{cleaned[: MAX_NAME - 9]}-{digest}"


# --- metrics -------------------------------------------------------------------------------------


def best_metrics(run: Run) -> dict[str, float]:
    """Return the best round of a run and its accuracy; {} if no images select it."""
    best = run.best
    if best is None:
        return {}
    return {BEST_METRIC: best.local_accuracy, BEST_ROUND: float(best.round)}


TOTALS = ("traffic/total_up_bytes", "traffic/total_down_bytes", "time/total_seconds")
SECONDS = "time/seconds"
"""A metric that every round has."""
_SCORES = re.compile(r"accuracy|dice|f1")
_OVER_CLIENTS = re.compile(r"_(std|jain|worst\d+|best\d+)$")


def with_totals(rounds: Iterable[Round]) -> Iterator[tuple[Round, dict[str, float]]]:
    """Yield each round with the `TOTALS` up to it: bytes up, bytes down and seconds."""
    sums = [0.0, 0.0, 0.0]
    for done in rounds:
        values = (done.up.total_bytes, done.down.total_bytes, done.seconds)
        sums = [total + value for total, value in zip(sums, values, strict=True)]
        yield done, dict(zip(TOTALS, sums, strict=True))


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

    Metrics of single clients are left out; they go into per_client.json.
    """
    headline_first = sorted(done.metrics.items(), key=lambda item: item[0] != HEADLINE)
    metrics = {
        grouped(name): value for name, value in headline_first
    }  # MLflow's pages keep this order
    for direction, traffic in (("up", done.up), ("down", done.down)):
        for unit, total, by_kind in (
            ("bytes", traffic.total_bytes, traffic.bytes),
            ("params", traffic.total_params, traffic.params),
        ):
            metrics[f"traffic/{direction}_{unit}"] = float(total)
            for kind, value in by_kind.items():
                metrics[valid_name(f"traffic/by kind/{direction}_{unit}_{kind}")] = float(value)
    metrics[SECONDS] = done.seconds
    if done.client_seconds is not None:
        metrics["time/client_seconds"] = done.client_seconds
    metrics["round/faults"] = float(len(done.events))
    if done.participants:
        metrics["round/participants"] = float(len(done.participants))
    return metrics


def per_client_json(rounds: Iterable[Round]) -> str:
    """Return the text of per_client.json; "" if no round has accuracies by client.

    Returns:
        {"per_client": {"rounds": [...], "clients": [...], "values": [clients x rounds]}}, with null
        for a client that was not evaluated in a round.
    """
    per_client = {done.round: done.per_client for done in rounds if done.per_client}
    if not per_client:
        return ""
    clients = sorted({client for values in per_client.values() for client in values})
    table = {
        "rounds": sorted(per_client),
        "clients": clients,
        "values": [[per_client[r].get(client) for r in sorted(per_client)] for client in clients],
    }
    return json.dumps({"per_client": table}) + "\n"


# --- description ---------------------------------------------------------------------------------


def run_note(done: Run) -> str:
    """Return the description of a run: method, data, accuracy, traffic."""
    info, final, best = done.info, done.final, done.best
    data = info.config["data"]
    up = Traffic.total(round_.up for round_ in done.rounds).total_bytes
    down = Traffic.total(round_.down for round_ in done.rounds).total_bytes
    scale = "" if info.scale == "laptop" else f" [{info.scale} scale]"
    lines = [
        f"**{info.algorithm}** on **{data_name(info.config)}**: {data['clients']} clients, "
        f"partition `{data['partition']['name']}`, {max(done.done, 0)} of {info.planned} rounds, "
        f"seed {info.seed}{scale}."
    ]
    if best is not None:
        lines.append(
            f"Local accuracy **{100 * best.local_accuracy:.2f} %** in round {best.round} "
            f"({BEST[info.select]})."
        )
    if final is not None:
        lines.append(f"Local accuracy in the last round: {100 * final.local_accuracy:.2f} %.")
    lines.append(f"Sent: up {size_of(up)}, down {size_of(down)}.")
    lines.append("Repeat: `python -m fedray.run run.json`, with the file from the artifacts.")
    return "\n\n".join(lines)


def picture(what: str, file: str) -> str:
    """Return Markdown that shows a figure from the artifacts."""
    return f"![{what}]({ARTIFACT}{file})"


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataInput:
    """The images of a run and their partition, as an MLflow dataset."""

    name: str
    digest: str  # of images, labels and partition; at most 36 characters
    source: str  # where the images come from, as JSON
    profile: str  # hashes, clients and partition, as JSON


def data_of(info: RunInfo) -> DataInput | None:
    """Return the MLflow dataset of a run; None before its data has been hashed."""
    if info.data_sha256 is None or info.partition_sha256 is None:
        return None
    data = info.config["data"]
    profile = {
        "clients": data["clients"],
        "partition": data["partition"],
        "data_sha256": info.data_sha256,
        "partition_sha256": info.partition_sha256,
    }
    return DataInput(
        data_name(info.config),
        f"{info.data_sha256[:12]}-{info.partition_sha256[:12]}",
        json.dumps({"source": data["source"], "uri": str(data.get("root") or "")}, default=str),
        json.dumps(profile, default=str),
    )


# --- a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrackedRun:
    """The content of a run in MLflow.

    Attributes:
        key: identifies the run; see `run_key`.
        name: the displayed name.
        params: configuration by dotted key, within MLflow's limits.
        tags: values by name.
        status: RUNNING, or how the run ended.
        started_ms: start in milliseconds since the epoch.
        seconds: duration; None: until now.
        rounds: all rounds so far.
        parent: key of the parent run.
        data: MLflow datasets.
        metrics: final numbers by name.
        files: artifacts, each with its folder among the artifacts ("" for the top).
        texts: text artifacts by their path among the artifacts.
        note: description in Markdown; `artifact:NAME` is replaced by the address of an artifact,
            and `VIEW_LINK` by that of the view.
        view: state of a saved view of the run's children, named after the run's key; {} for none.
        experiment: MLflow experiment of a run that is new there.
        question: description of a new experiment; "" for none.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    status: RunStatus
    started_ms: int
    seconds: float | None = None
    rounds: Sequence[Round] = ()
    parent: str | None = None
    data: Sequence[DataInput] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Sequence[tuple[Path, str]] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    view: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""
    question: str = ""

    @property
    def is_going(self) -> bool:
        """Return True if the run has not ended."""
        return self.status == "RUNNING"


# --- the run's key -------------------------------------------------------------------------------


def run_key(
    out: Path,
    identity: str,
    *,
    experiment: str | None = None,
    name: str | None = None,
    parent: str | None = None,
) -> str:
    """Return the key of the run in a folder; create it in tracking.json if missing.

    A moved folder keeps its key. A folder that was deleted and run again gets a new key, so that
    two runs never share an MLflow run.

    Args:
        out: the run's folder; created if missing.
        identity: hash of the experiment; the key of another experiment is replaced.
        experiment: MLflow experiment for a later upload; None: `experiment_name`.
        name: MLflow run name for a later upload; None: `run_name`.
        parent: key of the parent run, for a later upload.
    """
    metadata = read_metadata(out)
    is_same = metadata.get("identity") == identity
    fresh = f"{out.resolve().name or 'run'}-{identity[:12]}-{secrets.token_hex(4)}"
    key = metadata["key"] if is_same else re.sub(r"[^A-Za-z0-9_.-]", "_", fresh)
    settings = {"experiment": experiment, "name": name, "parent": parent}
    updated = {
        **(metadata if is_same else {}),
        **{k: v for k, v in settings.items() if v is not None},
    }
    updated |= {"key": key, "identity": identity}
    if updated != metadata:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / METADATA, updated)
    return str(key)


def record_uri(out: Path, uri: str) -> None:
    """Record in a folder's tracking.json the store that its run is in."""
    metadata = read_metadata(out)
    if metadata and metadata.get(URI) != mask(uri):
        write_json(out / METADATA, {**metadata, URI: mask(uri)})


def read_metadata(out: Path) -> dict[str, Any]:
    """Return the content of tracking.json, {} if it is missing; raise UserError if damaged."""
    path = out / METADATA
    try:
        metadata = json.loads(read_regular(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; delete it to log to a new run") from None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("key"), str):
        raise UserError(f"{path} holds no key; delete it to log to a new run")
    return metadata
