"""What of a run the tracker shows: params, tags and metrics within MLflow's limits; a run's key."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedray.config import Experiment
from fedray.errors import UserError
from fedray.files import write_json

MAX_NAME = 250
"""Characters of a param's, tag's or metric's name that MLflow takes."""
MAX_PARAM = 6000
"""Characters of a param's value that MLflow takes (500 before MLflow 2.9)."""
MAX_TAG = 8000
"""Characters of a tag's value that MLflow takes."""

CARD = "tracking.json"


# --- params and tags -----------------------------------------------------------------------------


def describe_run(experiment: Experiment) -> tuple[dict[str, str], dict[str, str]]:
    """Params and tags of a run that is about to start.

    Returns:
        The whole configuration by dotted key, and tags: algorithm, scale, seed, versions.
    """
    from fedray.runtime.session import versions

    return describe_result(
        {
            "config": experiment.tree(),
            "scale": experiment.scale,
            "algorithm": experiment.algorithm.name,
            "seed": experiment.seed,
            "identity": experiment.identity(),
            "versions": versions(),
        }
    )


def describe_result(result: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Params and tags out of what result.json holds."""
    tags = {
        "algorithm": str(result["algorithm"]),
        "scale": str(result["scale"]),
        "seed": str(result["seed"]),
        "fedray.identity": str(result["identity"]),
    }
    if "partition_sha256" in result:
        tags["partition_sha256"] = str(result["partition_sha256"])
    for package, version in result["versions"].items():
        tags["git" if package == "git" else f"version.{package}"] = str(version)
    return flatten(result["config"]), tags


def flatten(tree: Mapping[str, Any]) -> dict[str, str]:
    """A configuration as MLflow's params: {"data.partition.alpha": "0.1"}.

    A name or value beyond MLflow's limits is cut, and says so.
    """
    return {
        valid_name(key): shorten(value if isinstance(value, str) and value else json.dumps(value))
        for key, value in _leaves(tree, "")
    }


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def shorten(value: str, limit: int = MAX_PARAM) -> str:
    """`value` in at most `limit` characters; a cut one ends in how long it was."""
    if len(value) <= limit:
        return value
    end = f"... ({len(value)} characters)"
    return value[: limit - len(end)] + end


def valid_name(name: str) -> str:
    """A name that MLflow takes: 250 characters of [A-Za-z0-9_./ -]; a changed one gets a hash.

    Ours are valid as they are; a method of somebody else's may call a metric lambda by its letter.
    """
    cleaned = posixpath.normpath(re.sub(r"[^A-Za-z0-9_./ -]", "_", name)).lstrip("./ ")
    if cleaned == name and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{cleaned[: MAX_NAME - 9]}-{digest}"


# --- metrics -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One round's numbers.

    Attributes:
        step: the round.
        metrics: by name.
        total_seconds: seconds of all rounds up to this one, as far as they were passed.
    """

    step: int
    metrics: Mapping[str, float]
    total_seconds: float


TOTALS = ("total_up_bytes", "total_down_bytes", "total_seconds")


@dataclass
class Totals:
    """Turns the records of one run into points, each round once, with what they add up to.

    Attributes:
        first: the first round that was passed; None before that.
        last: the last one.
        sums: of `up_bytes`, `down_bytes` and `seconds` by their names in `TOTALS`.
        per_client: for each evaluated round, what was measured by client, by the metric's name.
    """

    first: int | None = None
    last: int = -1
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TOTALS, 0.0))
    per_client: dict[str, dict[int, Mapping[str, float]]] = field(default_factory=dict)

    def point(self, record: Mapping[str, Any]) -> Point | None:
        """Add one record; None when its round, or a later one, was passed before."""
        step = int(record["round"])
        if step <= self.last:
            return None
        self.first = step if self.first is None else self.first
        self.last = step
        for total in TOTALS:
            self.sums[total] += float(record[total.removeprefix("total_")])
        for name, values in record["metrics"].items():
            if name.startswith("per_client") and values:
                self.per_client.setdefault(name, {})[step] = values
        return Point(step, {**metrics_of(record), **self.sums}, self.sums["total_seconds"])


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one record of result.json, flat: `up_bytes/prototypes` and the like.

    What is measured per client is left out: it goes into one file, not into hundreds of metrics.
    """
    found: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for inner, number in value.items():
                add(f"{name}/{inner}", number)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[valid_name(name)] = float(value)

    for name, value in record["metrics"].items():
        if not name.startswith("per_client"):
            add(name, value)
    for name, value in record.items():
        if name.endswith("_by_kind"):
            add(name.removesuffix("_by_kind"), value)
        elif name not in ("round", "metrics"):
            add(name, value)
    for name, count in (("events", "faults"), ("participants", "participants")):
        if name in record:
            found[count] = float(len(record[name]))
    return found


def per_client_json(per_client: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """What was measured per client, as the text of per_client.json; "" when nothing was.

    Returns:
        {"per_client": {"rounds": [...], "clients": [...], "values": [clients x rounds]}}; a client
        that was not measured in a round has null there.
    """
    tables = {}
    for name, by_round in per_client.items():
        rounds = sorted(by_round)
        clients = sorted({int(client) for values in by_round.values() for client in values})
        tables[name] = {
            "rounds": rounds,
            "clients": clients,
            "values": [[by_round[r].get(str(c)) for r in rounds] for c in clients],
        }
    return json.dumps(tables) + "\n" if tables else ""


# --- the run's key -------------------------------------------------------------------------------


def run_key(
    out: Path,
    identity: str,
    *,
    experiment: str | None = None,
    name: str | None = None,
    parent: str | None = None,
) -> str:
    """The key of the run in a folder; made, and written to its tracking.json, the first time.

    A folder that is moved keeps its key; one that was deleted and is run again gets a new one, so
    that two runs never share an MLflow run.

    Args:
        out: the run's folder; created if missing.
        identity: hash of the experiment; a key of another one is not used.
        experiment: MLflow experiment for a later upload; None: the name in result.json.
        name: MLflow run name for a later upload; None: the folder's name.
        parent: as given to `MlflowTracker`, for a later upload.

    Raises:
        UserError: when tracking.json is not what this wrote.
    """
    card = read_card(out)
    known = card.get("identity") == identity
    fresh = f"{out.resolve().name or 'run'}-{identity[:12]}-{secrets.token_hex(4)}"
    key = card["key"] if known else re.sub(r"[^A-Za-z0-9_.-]", "_", fresh)
    given = {"experiment": experiment, "name": name, "parent": parent}
    wanted = {**(card if known else {}), **{k: v for k, v in given.items() if v is not None}}
    wanted |= {"key": key, "identity": identity}
    if wanted != card:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / CARD, wanted)
    return str(key)


def read_card(out: Path) -> dict[str, Any]:
    """A folder's tracking.json; empty when there is none.

    Raises:
        UserError: when it is not what `run_key` wrote.
    """
    path = out / CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; delete it to log to a new run") from None
    if not isinstance(card, dict) or not isinstance(card.get("key"), str):
        raise UserError(f"{path} holds no key; delete it to log to a new run")
    return card
