"""A run's records: what determined its numbers, its rounds, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedray.records.environment import Environment
from fedray.records.metric import (
    HEADLINE,
    RECORD,
    VALIDATION,
    Metric,
    Select,
    Stopping,
    best_round,
    chosen_by,
    find_metric,
)

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words."""
Counts = Mapping[str, int | float]
"""Numbers by kind; an int stays an int."""
MEASURED_SECONDS = ("seconds", "client_seconds")
"""Fields of a round that differ between runs of one experiment."""


@dataclass(frozen=True, config=RECORD)
class Traffic:
    """Parameters and bytes of payloads in one direction, by kind ("weights", "prototypes", ...).

    Attributes:
        params: how many numbers travelled; a mean over runs may be a fraction.
        bytes: their size.
    """

    params: Counts = field(default_factory=dict)
    bytes: Counts = field(default_factory=dict)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic.total([self, other])

    @staticmethod
    def total(parts: Iterable[Traffic]) -> Traffic:
        """Return the sum of many, added in their order; kinds are sorted."""
        params: dict[str, float] = {}
        size: dict[str, float] = {}
        for part in parts:
            for kind, count in part.params.items():
                params[kind] = params.get(kind, 0) + count
            for kind, count in part.bytes.items():
                size[kind] = size.get(kind, 0) + count
        return Traffic(dict(sorted(params.items())), dict(sorted(size.items())))

    @property
    def total_params(self) -> float:
        """Return the parameters of all kinds."""
        return sum(self.params.values())

    @property
    def total_bytes(self) -> float:
        """Return the bytes of all kinds."""
        return sum(self.bytes.values())


@dataclass(frozen=True, config=RECORD)
class Work:
    """What steps did, counted where they ran.

    Attributes:
        steps: of optimisers.
        images: read by models; an image counts each time that a model reads it.
        parameters: numbers that optimisers trained; of several clients or rounds the mean over
            those that trained.
    """

    steps: int = 0
    images: int = 0
    parameters: float = 0

    def then(self, later: Work) -> Work:
        """Return the work of two steps of one client, which may train the same parameters."""
        most = max(self.parameters, later.parameters)
        return Work(self.steps + later.steps, self.images + later.images, most)

    @staticmethod
    def total(parts: Iterable[Work]) -> Work:
        """Return the work of several clients or rounds."""
        parts = list(parts)
        trained = [part.parameters for part in parts if part.parameters]
        return Work(
            sum(part.steps for part in parts),
            sum(part.images for part in parts),
            sum(trained) / len(trained) if trained else 0,
        )


@dataclass(frozen=True, config=RECORD)
class Event:
    """Something that happened in a round: a reply dropped, late, arrived, or an error."""

    client: int
    what: str


@dataclass(frozen=True, config=RECORD)
class Round:
    """One round.

    Attributes:
        round: 0 is the evaluation before the first round.
        seconds: wall time of the round, evaluation included.
        metrics: by name.
        per_client: accuracy on a client's own test split by client id; empty without evaluation.
        up: uploads of the round.
        down: downloads of the round.
        participants: ids of the clients that were asked.
        events: what went wrong.
        matrices: a method's analyses [C, C] as nested lists, by name; written to matrices.json.
        client_seconds: wall time of one client's steps where they ran, the mean over the clients
            that were asked; None if none was.
        client_work: what the clients' steps did; None if it was not counted.
        server_work: what the server's steps did.
    """

    round: int
    seconds: float
    metrics: Mapping[str, float]
    per_client: Mapping[int, float] = field(default_factory=dict)
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    participants: Sequence[int] = ()
    events: Sequence[Event] = ()
    matrices: Annotated[Mapping[str, Any], Field(exclude=True)] = field(
        default_factory=dict, compare=False
    )
    client_seconds: float | None = None
    client_work: Work | None = None
    server_work: Work | None = None


@dataclass(frozen=True, config=RECORD)
class Costs:
    """Time and memory of a run so far.

    Attributes:
        wall_seconds: from the beginning of round 0 to the end of the last round.
        startup_seconds: from the start of the process to the end of round 0.
        peak_rss_bytes: the largest memory of the server's process.
    """

    wall_seconds: float = 0.0
    startup_seconds: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(frozen=True, config=RECORD)
class EarlierEnvironment:
    """The environment of a run's rounds up to `until_round`, where it changed at a resume."""

    until_round: int
    environment: Environment


@dataclass(frozen=True, config=RECORD)
class RunInfo:
    """What determined a run's numbers, and what it is called.

    Attributes:
        name: the experiment's name.
        scale: laptop or paper, a label.
        algorithm: the method's name.
        config: the complete experiment.
        seed: of every random stream.
        identity: hash of all that determines the numbers, the content of data and files included.
        environment: hardware and versions that made the numbers.
        partition_sha256: hash of who owns which image.
        data_sha256: content hash of images and labels.
        files_sha256: content hashes of the files that the experiment names, by their keys.
        architectures: each client's.
        metrics: declarations of the numbers in the rounds.
        privacy: what epsilon covers, against whom, and what is exempt; None without privacy.
        retested: `folder` and `identity` of the run that trained the models, if this run only
            tests them.
        earlier_environments: of a run that was resumed in another environment, first ones first.
    """

    name: str
    scale: str
    algorithm: str
    config: Mapping[str, Any]
    seed: int
    identity: str
    environment: Environment
    partition_sha256: str | None = None
    data_sha256: str | None = None
    files_sha256: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    privacy: Mapping[str, Any] | None = None
    retested: Mapping[str, Any] | None = None
    earlier_environments: tuple[EarlierEnvironment, ...] = ()

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of Python and packages, and the git commit as "git"."""
        return self.environment.versions

    @property
    def planned(self) -> int:
        """Return T, the number of rounds of the experiment."""
        return int(self.config["rounds"])

    @property
    def select(self) -> Select:
        """Return the images that choose the best round."""
        select: Select = self.config["report"]["select"]
        return select

    @property
    def stopping(self) -> Stopping | None:
        """Return the rule of early stopping; None for never."""
        keys = self.config.get("early_stopping") or {}
        if keys.get("patience") is None:
            return None
        metric = self.metric(keys["metric"])
        chosen = metric.on == "test" and self.select == "validation"
        name = f"{VALIDATION}{metric.name}" if chosen else metric.name
        return Stopping(keys["patience"], name, metric.direction)

    def metric(self, name: str) -> Metric:
        """Return the declaration of a number in the rounds, or that of an undeclared one."""
        found = find_metric(name, self.metrics)
        return replace(found, name=name) if found else Metric(name, "number", None, None)


def data_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's images: the source, and the folder of the user's own images."""
    data = config["data"]
    name, root = str(data["source"]["name"]), data.get("root")
    folder = PurePath(str(root)).name if root else ""
    return f"{name} {folder}" if folder and folder != name else name


@dataclass(frozen=True, config=RECORD)
class Summary:
    """One evaluated round in short.

    Attributes:
        round: the round.
        local_accuracy: on the test.
        local_accuracy_weighted: likewise, weighted by the clients' images.
        validation: local accuracy on validation images; None without any.
        chosen: the images that chose the round; None if it was not chosen.
    """

    round: int
    local_accuracy: float
    local_accuracy_weighted: float
    validation: float | None = None
    chosen: Select | None = None

    @classmethod
    def of(cls, done: Round) -> Summary | None:
        """Summarise a round; None if it was not evaluated."""
        if HEADLINE not in done.metrics:
            return None
        test = done.metrics[HEADLINE], done.metrics[f"{HEADLINE}_weighted"]
        return cls(done.round, *test, done.metrics.get(f"{VALIDATION}{HEADLINE}"))

    def better(self, before: Summary | None, select: Select) -> Summary | None:
        """Return the better of this round and the best one before; of equal ones the earlier.

        The untrained model of round 0 is no candidate, nor is a round without what chooses.
        """
        value = self._ranking_value(select)
        if self.round == 0 or value is None:
            return before
        best = None if before is None else before._ranking_value(select)
        return before if best is not None and best >= value else replace(self, chosen=select)

    def _ranking_value(self, select: Select) -> float | None:
        return self.local_accuracy if select == "test" else self.validation


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it.

    Attributes:
        info: what determined the numbers.
        rounds: so far, round 0 first.
        costs: time and memory.
        started: when the run began; None if not known.
        checksums: of the lines of rounds.jsonl, each with those above it; empty for a run that was
            not read from its folder.
    """

    info: RunInfo
    rounds: Sequence[Round] = ()
    costs: Costs = field(default_factory=Costs)
    started: datetime | None = field(default=None, compare=False)
    checksums: Sequence[str] = field(default=(), compare=False, repr=False)

    @property
    def rounds_checksum(self) -> str:
        """Return the checksum of all rounds: that of the last line, or the run's identity."""
        return self.checksums[-1] if self.checksums else self.info.identity

    def until(self, round_: int) -> Run:
        """Return the run without the rounds after `round_`."""
        count = sum(done.round <= round_ for done in self.rounds)
        return replace(self, rounds=self.rounds[:count], checksums=self.checksums[:count])

    @property
    def done(self) -> int:
        """Return the last finished round; -1 without any."""
        return self.rounds[-1].round if self.rounds else -1

    @property
    def stopped_early(self) -> bool:
        """Return True if `early_stopping` ended the run before its last round."""
        stopping = self.info.stopping
        if stopping is None or self.done >= self.info.planned:
            return False
        curve = self.curve(stopping.metric)
        return stopping.is_due([value for round_, value in curve.items() if round_ > 0])

    @property
    def is_finished(self) -> bool:
        """Return True if no round is left to do."""
        tested_only = self.info.retested is not None
        return self.done >= self.info.planned or tested_only or self.stopped_early

    @property
    def best(self) -> Summary | None:
        """Return the first round of the highest local accuracy on the images that choose.

        None if nothing may choose: nobody has validation images, and `report.select` is not "test".
        """
        best = None
        for evaluated in self._evaluated():
            best = evaluated.better(best, self.info.select)
        return best

    @property
    def final(self) -> Summary | None:
        """Return the last evaluated round."""
        evaluated = self._evaluated()
        return evaluated[-1] if evaluated else None

    @property
    def client_work(self) -> Work | None:
        """Return what clients did in all rounds; None if a round was not counted."""
        return _in_all(done.client_work for done in self.rounds)

    @property
    def server_work(self) -> Work | None:
        """Return what the server did in all rounds; None if a round was not counted."""
        return _in_all(done.server_work for done in self.rounds)

    def _evaluated(self) -> list[Summary]:
        return [summary for done in self.rounds if (summary := Summary.of(done)) is not None]

    def curve(self, metric: str) -> dict[int, float]:
        """Return the metric by round, where it was measured."""
        return {r.round: r.metrics[metric] for r in self.rounds if metric in r.metrics}

    def best_round(self, metric: str, select: Select | None = None) -> int | None:
        """Return the best round of a metric, see `chosen_by`; None where nothing may choose."""
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
        """Return the metric in its best round (see `best_round`) or the last; None without one."""
        curve = self.curve(metric)
        if at == "best":
            best = self.best_round(metric, select)
            return None if best is None else curve[best]
        return list(curve.values())[-1] if curve else None


def _in_all(parts: Iterable[Work | None]) -> Work | None:
    parts = list(parts)
    counted = [part for part in parts if part is not None]
    return Work.total(counted) if len(counted) == len(parts) else None
