"""A run's result: what determined its numbers, its rounds, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from fedray.records.metric import Metric, best_of, find_metric, undeclared
from fedray.records.round import Round

SCHEMA = 2
"""Of result.json; 1 lacked the metrics' units and hyper-parameters at their defaults."""

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words."""

HEADLINE = "local_accuracy"
"""The metric that every run has, and that `best` is about."""


@dataclass(frozen=True)
class RunInfo:
    """What determined a run's numbers, and what names it.

    Attributes:
        name: what the experiment is called.
        scale: laptop or paper.
        algorithm: the method's name.
        config: the complete experiment.
        seed: of every random stream.
        identity: hash of all that determines the numbers, the data's content included.
        versions: of the packages that make the numbers, and the git commit.
        partition_sha256: who owns which image; None in old results that lack it.
        data_sha256: content of images and labels.
        architectures: each client's.
        metrics: what the numbers of the rounds mean.
        privacy: what epsilon covers, against whom, and what is exempt; None without privacy.
    """

    name: str
    scale: str
    algorithm: str
    config: Mapping[str, Any]
    seed: int
    identity: str
    versions: Mapping[str, str]
    partition_sha256: str | None = None
    data_sha256: str | None = None
    architectures: Sequence[str] = ()
    metrics: Sequence[Metric] = ()
    privacy: Mapping[str, Any] | None = None

    @property
    def planned(self) -> int:
        """T, the rounds that were asked for."""
        return int(self.config["rounds"])

    def metric(self, name: str) -> Metric:
        """What a number of the rounds means; without a declaration, that nothing is known of it."""
        found = find_metric(name, self.metrics)
        return replace(found, name=name) if found else undeclared(name)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the head of result.json."""
        tree = {name: getattr(self, name) for name in _PLAIN}
        tree["architectures"] = list(self.architectures)
        metrics = {metric.name: metric.to_json() for metric in self.metrics}
        return {"schema": SCHEMA, **tree, "metrics": metrics}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> RunInfo:
        """What `to_json` wrote; of the first version, with the metrics that it had.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: when it is anything else.
        """
        if int(tree.get("schema", 1)) > SCHEMA:
            raise ValueError(
                f"it has schema {tree['schema']}, and this version reads up to {SCHEMA}"
            )
        given = {name: tree[name] for name in _PLAIN if name in tree}
        given["architectures"] = tuple(given.get("architectures", ()))
        if "metrics" in tree:
            metrics = tuple(Metric.from_json(name, own) for name, own in tree["metrics"].items())
        else:
            metrics, given["config"] = FIRST_METRICS, _with_named_components(tree["config"])
        return cls(**{"name": "experiment", "scale": "laptop", **given}, metrics=metrics)


def _with_named_components(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of the first version, in which some components were names alone."""
    changed = {section: dict(keys) for section, keys in config.items() if section in _NAMED}
    for section, names in _NAMED.items():
        for name in names:
            value = changed.get(section, {}).get(name)
            if isinstance(value, str):
                changed[section][name] = {"name": value}
    return {**config, **changed}


_NAMED = {"data": ("source", "augment"), "text": ("style",)}
_PLAIN = (
    "name",
    "scale",
    "algorithm",
    "config",
    "seed",
    "identity",
    "versions",
    "partition_sha256",
    "data_sha256",
    "architectures",
    "privacy",
)

FIRST_METRICS = (
    Metric("train_loss", "nats", "min", "train"),
    Metric("{name}_loss", "nats", "min", None),
    Metric("local_accuracy"),
    Metric("local_accuracy_{how}"),
    Metric("local_accuracy_std", direction=None),
    Metric("local_accuracy_jain", "index"),
    Metric("local_macro_f1", "index"),
    Metric("{name}_accuracy"),
    Metric("{name}_accuracy_best"),
    Metric("accuracy_{name}"),
    Metric("dice", "index"),
    Metric("dice_{name}", "index"),
    Metric("share_{name}", direction=None, on=None),
)
"""What the numbers of results of the first version mean, which did not say so."""


@dataclass(frozen=True)
class Costs:
    """What a run took so far.

    Attributes:
        wall_seconds: in rounds.
        startup_seconds: until the first round was there.
        peak_rss_bytes: the most memory that the server's process held.
    """

    wall_seconds: float = 0.0
    startup_seconds: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(frozen=True)
class Summary:
    """One evaluated round in short."""

    round: int
    local_accuracy: float
    local_accuracy_weighted: float


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it.

    Attributes:
        info: what determined the numbers.
        rounds: so far, round 0 first.
        costs: time and memory.
    """

    info: RunInfo
    rounds: Sequence[Round] = ()
    costs: Costs = field(default_factory=Costs)

    @property
    def done(self) -> int:
        """The last round that was finished; -1 when there is none."""
        return self.rounds[-1].round if self.rounds else -1

    @property
    def best(self) -> Summary | None:
        """The evaluated round of the highest local accuracy, the first of equal ones."""
        evaluated = self._evaluated()
        return max(evaluated, key=lambda s: (s.local_accuracy, -s.round)) if evaluated else None

    @property
    def final(self) -> Summary | None:
        """The last evaluated round."""
        evaluated = self._evaluated()
        return evaluated[-1] if evaluated else None

    def _evaluated(self) -> list[Summary]:
        return [
            Summary(r.round, r.metrics[HEADLINE], r.metrics[f"{HEADLINE}_weighted"])
            for r in self.rounds
            if HEADLINE in r.metrics
        ]

    def curve(self, metric: str) -> dict[int, float]:
        """The metric by round, where it was measured."""
        return {r.round: r.metrics[metric] for r in self.rounds if metric in r.metrics}

    def value(self, metric: str, at: Literal["best", "final"]) -> float | None:
        """The metric's best or last value; None when it was never measured."""
        values = list(self.curve(metric).values())
        if not values:
            return None
        return values[-1] if at == "final" else best_of(self.info.metric(metric), values)

    def to_json(self) -> dict[str, Any]:
        """Plain data for result.json."""
        return {
            **self.info.to_json(),
            "rounds": [r.to_json() for r in self.rounds],
            "best": asdict(self.best) if self.best else None,
            "final": asdict(self.final) if self.final else None,
            **asdict(self.costs),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Run:
        """What `to_json` wrote, of this version or the first.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: when it is anything else.
        """
        costs = {name: tree[name] for name in asdict(Costs()) if name in tree}
        rounds = [Round.from_json(own) for own in tree["rounds"]]
        return cls(RunInfo.from_json(tree), rounds, Costs(**costs))
