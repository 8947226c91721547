"""A run's result: what determined its numbers, its rounds, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

from fedray.records.choice import BEST, VALIDATION, Select, Stopping, best_round, chosen_by
from fedray.records.metric import HEADLINE, Metric, find_metric, undeclared
from fedray.records.round import Round, rounds_checksum
from fedray.records.sealed import CHECKSUM, canonical, checksum, sealed, unsealed

SCHEMA = 4
"""Of result.json; 1 lacked the metrics' units and hyper-parameters at their defaults, 2 the
checksums, 3 validation images: its best round was chosen on the test, round 0 included."""

_SEALED = 3
"""The first schema with checksums."""

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words."""


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
        retested: of a run whose models were trained in another one and only tested here, that one's
            `folder` and `identity`; None for all others.
        files_sha256: content of the run's own files of texts and weights, by the keys that name
            them; None where it has none, and in results from before this was written.
        earlier_versions: of a run that went on with other versions, what the rounds before were
            made with: `until_round` and `versions`, the first ones first.
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
    retested: Mapping[str, Any] | None = None
    files_sha256: Mapping[str, str] | None = None
    earlier_versions: Sequence[Mapping[str, Any]] = ()

    @property
    def planned(self) -> int:
        """T, the rounds that were asked for."""
        return int(self.config["rounds"])

    @property
    def select(self) -> Select:
        """On which images the best round is chosen; before this could be said, on the test."""
        report = self.config.get("report") or {"select": "test"}
        select: Select = report["select"]
        return select

    @property
    def stopping(self) -> Stopping | None:
        """When the run ends before its last round; None for never."""
        keys = self.config.get("early_stopping") or {}
        if keys.get("patience") is None:
            return None
        metric = self.metric(keys["metric"])
        chosen = metric.on == "test" and self.select == "validation"
        name = f"{VALIDATION}{metric.name}" if chosen else metric.name
        return Stopping(keys["patience"], name, metric.direction)

    def metric(self, name: str) -> Metric:
        """What a number of the rounds means; without a declaration, that nothing is known of it."""
        found = find_metric(name, self.metrics)
        return replace(found, name=name) if found else undeclared(name)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the head of result.json."""
        tree = {name: getattr(self, name) for name in _PLAIN}
        tree["architectures"] = list(self.architectures)
        tree |= {name: value for name in _LEFT_OUT if (value := getattr(self, name))}
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
        given = {name: tree[name] for name in (*_PLAIN, *_LEFT_OUT) if name in tree}
        _check_types(given)
        given["architectures"] = tuple(given.get("architectures", ()))
        if "metrics" in tree:
            metrics = tuple(Metric.from_json(name, own) for name, own in tree["metrics"].items())
        else:
            metrics, given["config"] = FIRST_METRICS, _with_named_components(tree["config"])
        return cls(**{"name": "experiment", "scale": "laptop", **given}, metrics=metrics)


def _check_types(given: Mapping[str, Any]) -> None:
    """Refuse what is not of the type that `RunInfo` says.

    Raises:
        TypeError: naming the key.
    """
    for name, value in given.items():
        optional = name in _OPTIONAL and value is None
        if not (optional or isinstance(value, _TYPES.get(name, str))):
            raise TypeError(f"'{name}' is of type {type(value).__name__}")
    for entry in given.get("earlier_versions", ()):
        if not isinstance(entry["until_round"], int) or not isinstance(entry["versions"], dict):
            raise TypeError("an entry of 'earlier_versions' is none")
    if not isinstance(given["config"].get("rounds"), int):
        raise TypeError("'config' does not say how many rounds there are")


def _with_named_components(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of the first version, in which some components were names alone."""
    changed = {section: dict(keys) for section, keys in config.items() if section in _NAMED}
    for section, names in _NAMED.items():
        for name in names:
            value = changed.get(section, {}).get(name)
            if isinstance(value, str):
                changed[section][name] = {"name": value}
    return {**config, **changed}


_TYPES: dict[str, type] = {
    "config": dict,
    "versions": dict,
    "seed": int,
    "architectures": list,
    "privacy": dict,
    "retested": dict,
    "files_sha256": dict,
    "earlier_versions": list,
}
_OPTIONAL = ("partition_sha256", "data_sha256", "privacy", "retested")
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
    "retested",
)
_LEFT_OUT = ("files_sha256", "earlier_versions")
"""Likewise, but left out where there is nothing to say."""

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


def data_name(config: Mapping[str, Any]) -> str:
    """What a run's images are called: the source, and the folder's name of images of one's own.

    Args:
        config: the complete experiment.
    """
    data = config["data"]
    source, root = data["source"], data.get("root")
    name = str(source["name"] if isinstance(source, Mapping) else source)
    folder = PurePath(str(root)).name if root else ""
    return f"{name} {folder}" if folder and folder != name else name


@dataclass(frozen=True)
class Costs:
    """What a run took so far.

    Attributes:
        wall_seconds: from the beginning of round 0 to the end of the last one.
        startup_seconds: from the start of the process until round 0 was over.
        peak_rss_bytes: the most memory that the server's process held.
    """

    wall_seconds: float = 0.0
    startup_seconds: float = 0.0
    peak_rss_bytes: int = 0

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Costs:
        """What `asdict` made; what is left out counts as nothing.

        Raises:
            TypeError: when it is anything else.
        """
        for name, value in tree.items():
            if not isinstance(value, int | float):
                raise TypeError(f"'{name}' is of type {type(value).__name__}")
        return cls(**tree)


@dataclass(frozen=True)
class Summary:
    """One evaluated round in short.

    Attributes:
        round: the round.
        local_accuracy: on the test.
        local_accuracy_weighted: likewise, by the clients' images.
        validation: local accuracy on validation images; None where there are none.
        chosen: on which images it was chosen; None of a round that was not.
    """

    round: int
    local_accuracy: float
    local_accuracy_weighted: float
    validation: float | None = None
    chosen: Select | None = None

    @classmethod
    def of(cls, done: Round) -> Summary | None:
        """What is said of a round; nothing, where it was not evaluated."""
        if HEADLINE not in done.metrics:
            return None
        test = done.metrics[HEADLINE], done.metrics[f"{HEADLINE}_weighted"]
        return cls(done.round, *test, done.metrics.get(f"{VALIDATION}{HEADLINE}"))

    def better(self, before: Summary | None, select: Select) -> Summary | None:
        """The better of this one and the best before it; of equal ones the earlier.

        The untrained model of round 0 is no candidate, nor is what `select` has not measured.
        """
        worth = self._worth(select)
        if self.round == 0 or worth is None:
            return before
        found = None if before is None else before._worth(select)
        return before if found is not None and found >= worth else replace(self, chosen=select)

    def _worth(self, select: Select) -> float | None:
        return self.local_accuracy if select == "test" else self.validation

    def to_json(self) -> dict[str, Any]:
        """Plain data for result.json; what was chosen says how."""
        tree: dict[str, Any] = {
            "round": self.round,
            HEADLINE: self.local_accuracy,
            f"{HEADLINE}_weighted": self.local_accuracy_weighted,
        }
        if self.validation is not None:
            tree[f"{VALIDATION}{HEADLINE}"] = self.validation
        return tree if self.chosen is None else {**tree, "chosen": BEST[self.chosen]}


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
    def stopped_early(self) -> bool:
        """Whether `early_stopping` ended it before its last round."""
        stopping = self.info.stopping
        if stopping is None or self.done >= self.info.planned:
            return False
        curve = self.curve(stopping.metric)
        return stopping.is_due([value for round_, value in curve.items() if round_ > 0])

    @property
    def is_finished(self) -> bool:
        """Whether no round is left to do."""
        tested_only = self.info.retested is not None
        return self.done >= self.info.planned or tested_only or self.stopped_early

    @property
    def best(self) -> Summary | None:
        """The round of the highest local accuracy on the images that choose, the first of equals.

        None where nothing may choose: nobody has validation images, and `report.select` does not
        say that the test chooses.
        """
        found = None
        for evaluated in self._evaluated():
            found = evaluated.better(found, self.info.select)
        return found

    @property
    def final(self) -> Summary | None:
        """The last evaluated round."""
        evaluated = self._evaluated()
        return evaluated[-1] if evaluated else None

    def _evaluated(self) -> list[Summary]:
        return [found for r in self.rounds if (found := Summary.of(r)) is not None]

    def curve(self, metric: str) -> dict[int, float]:
        """The metric by round, where it was measured."""
        return {r.round: r.metrics[metric] for r in self.rounds if metric in r.metrics}

    def best_round(self, metric: str, select: Select | None = None) -> int | None:
        """The best round of a metric, see `chosen_by`; None where nothing may choose.

        Args:
            metric: what the round is asked of; it was measured in it.
            select: on which images is chosen; None: as the run's experiment says.
        """
        curve = self.curve(metric)
        measured = {name for done in self.rounds if done.round > 0 for name in done.metrics}
        name = chosen_by(self.info.metric(metric), measured, select or self.info.select)
        if name is None:
            return None
        chooser = {round_: value for round_, value in self.curve(name).items() if round_ in curve}
        return best_round(chooser, self.info.metric(name).direction)

    def value(
        self, metric: str, at: Literal["best", "final"], select: Select | None = None
    ) -> float | None:
        """The metric in its best round or the last one; None where there is no such round.

        Args:
            metric: its name.
            at: which round.
            select: as of `best_round`.
        """
        curve = self.curve(metric)
        if at == "best":
            found = self.best_round(metric, select)
            return None if found is None else curve[found]
        return list(curve.values())[-1] if curve else None

    def head(self) -> dict[str, Any]:
        """Plain data for result.json but the rounds, with a checksum."""
        rounds = rounds_checksum(self.rounds, self.info.identity)
        return result_head(self.info, self.best, self.final, self.costs, rounds)

    def to_json(self) -> dict[str, Any]:
        """Plain data for result.json."""
        return {**self.head(), "rounds": [r.to_json() for r in self.rounds]}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Run:
        """What `to_json` wrote, of this version or an earlier one.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: when it is anything else.
        """
        _check_seals(tree)
        costs = Costs.from_json({name: tree[name] for name in asdict(Costs()) if name in tree})
        rounds = [Round.from_json(own) for own in tree["rounds"]]
        return cls(RunInfo.from_json(tree), rounds, costs)


def result_head(
    info: RunInfo, best: Summary | None, final: Summary | None, costs: Costs, rounds: str
) -> dict[str, Any]:
    """Plain data for result.json but the rounds, whose checksum is given; with its own."""
    tree = {
        **info.to_json(),
        "best": best.to_json() if best else None,
        "final": final.to_json() if final else None,
        **asdict(costs),
        "rounds_checksum": rounds,
    }
    return sealed(tree)


def _check_seals(tree: Mapping[str, Any]) -> None:
    """Hold a result against its checksums; those of the first two versions have none.

    Raises:
        ValueError: when it is damaged.
    """
    if CHECKSUM not in tree and int(tree.get("schema", 1)) < _SEALED:
        return
    head = unsealed({key: value for key, value in tree.items() if key != "rounds"})
    found = tree["identity"]
    for record in tree["rounds"]:
        found = checksum(found, canonical(record))
    if found != head["rounds_checksum"]:
        raise ValueError("its rounds do not fit their checksum")
