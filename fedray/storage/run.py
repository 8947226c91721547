"""The records of a run: its settings, rounds and costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedray.storage.environment import Environment
from fedray.storage.metric import (
    HEADLINE,
    RECORD,
    Metric,
    Select,
    best_round,
    chosen_by,
    find_metric,
)

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, as named by MLflow."""
Counts = Mapping[str, int | float]
"""Numbers by kind of payload."""
MEASURED_SECONDS = ("seconds", "client_seconds")
"""Fields of a round that differ between runs of one experiment."""


@dataclass(frozen=True, config=RECORD)
class Traffic:
    """Parameters and bytes of payloads in one direction, by kind ("weights", "prototypes", ...).

    Attributes:
        params: number of parameters sent; a mean over runs may be a fraction.
        bytes: size of the parameters.
    """

    params: Counts = field(default_factory=dict)
    bytes: Counts = field(default_factory=dict)

    @staticmethod
    def total(parts: Iterable[Traffic]) -> Traffic:
        """Return the sum of several parts; kinds are sorted."""
        totals: tuple[dict[str, float], dict[str, float]] = ({}, {})
        parts = list(parts)
        times = Counter(map(id, parts))  # clients whose uploads have one form share an object
        for key, part in dict(zip(map(id, parts), parts, strict=True)).items():
            for total, counts in zip(totals, (part.params, part.bytes), strict=True):
                for kind, count in counts.items():
                    total[kind] = total.get(kind, 0) + times[key] * count
        return Traffic(*(dict(sorted(total.items())) for total in totals))

    @property
    def total_bytes(self) -> float:
        """Return the bytes of all kinds."""
        return sum(self.bytes.values())


@dataclass(frozen=True, config=RECORD)
class Work:
    """The amount of computation in client or server steps.

    Attributes:
        steps: number of optimiser steps.
        images: number of images passed through models, counted at every pass.
        parameters: number of trained parameters; over several clients or rounds, the mean over
            those that trained.
    """

    steps: int = 0
    images: int = 0
    parameters: float = 0

    @staticmethod
    def total(parts: Iterable[Any]) -> Work:
        """Return the work of several clients (`counts.Counts`) or rounds."""
        parts = list(parts)
        trained = [part.parameters for part in parts if part.parameters]
        return Work(
            sum([part.steps for part in parts]),
            sum([part.images for part in parts]),
            sum(trained) / len(trained) if trained else 0,
        )


@dataclass(frozen=True, config=RECORD)
class Round:
    """One round.

    Attributes:
        round: 0 is the evaluation before the first round.
        seconds: wall time of the round, evaluation included.
        metrics: values by name of the metric.
        per_client: accuracy on a client's own test split by client id; empty without evaluation.
        up: uploads of the round.
        down: downloads of the round.
        participants: ids of the participating clients.
        absent: the participants that were absent by draw (`faults.drop`).
        noised: the clients of each step whose uploads had noise (`privacy.mode`).
        matrices: a method's analyses [C, C] as nested lists, by name; written to matrices.json.
        client_seconds: wall time of a client's steps on its worker, averaged over participants;
            None without participants.
        client_work: computation in the clients' steps; None if not counted.
        server_work: computation in the server's steps; None if not counted.
    """

    round: int
    seconds: float
    metrics: Mapping[str, float]
    per_client: Mapping[int, float] = field(default_factory=dict)
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    participants: Sequence[int] = ()
    absent: Sequence[int] = ()
    noised: Sequence[Sequence[int]] = ()
    matrices: Annotated[Mapping[str, Any], Field(exclude=True)] = field(
        default_factory=dict, compare=False
    )
    client_seconds: float | None = None
    client_work: Work | None = None
    server_work: Work | None = None

    @property
    def local_accuracy(self) -> float:
        """Return the mean over clients of the accuracy on their test images."""
        return self.metrics[HEADLINE]


@dataclass(frozen=True, config=RECORD)
class Costs:
    """Time and memory of a run so far.

    Attributes:
        wall_seconds: time from the start of round 0 to the end of the last round.
        startup_seconds: time from the start of the process to the end of round 0.
        peak_rss_bytes: peak memory of the server's process.
        peak_device_bytes: most memory that one process's tensors had on an accelerator; 0 without.
    """

    wall_seconds: float = 0.0
    startup_seconds: float = 0.0
    peak_rss_bytes: int = 0
    peak_device_bytes: int = 0


@dataclass(frozen=True, config=RECORD)
class RunInfo:
    """The content of run.json but for the partition: everything that determined a run's numbers.

    Attributes:
        config: the complete experiment.
        identity: hash of all settings that determine the numbers, and of the data's content.
        environment: hardware and versions; of a resumed run, those of the last process.
        partition_sha256: hash of the assignment of images to clients.
        data_sha256: content hash of images and labels.
        files_sha256: content hashes of the files that the experiment names, by their keys.
        metrics: declarations of the numbers in the rounds.
        retested: `folder` and `identity` of the run that trained the models, if this run only
            tests them.
        plugins: the plug-ins, with their texts.
        started: when the run began; None before.
    """

    config: Mapping[str, Any]
    identity: str
    environment: Environment
    partition_sha256: str | None = None
    data_sha256: str | None = None
    files_sha256: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    retested: Mapping[str, Any] | None = None
    plugins: tuple[Mapping[str, Any], ...] = ()
    started: datetime | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return str(self.config["name"])

    @property
    def algorithm(self) -> str:
        """Return the method's name."""
        return str(self.config["algorithm"]["name"])

    @property
    def seed(self) -> int:
        """Return the seed of all random streams."""
        return int(self.config["seed"])

    @property
    def planned(self) -> int:
        """Return T, the number of rounds of the experiment."""
        return int(self.config["rounds"])

    @property
    def select(self) -> Select:
        """Return the images that select the best round."""
        select: Select = self.config["report"]["select"]
        return select

    def metric(self, name: str) -> Metric:
        """Return the declaration of a metric; metrics without one count as plain numbers."""
        declaration = find_metric(name, (*self.metrics, Metric(HEADLINE)))
        return (
            replace(declaration, name=name) if declaration else Metric(name, "number", None, None)
        )


def data_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's images: the source, and the folder of the user's own images."""
    data = config["data"]
    name, root = str(data["source"]["name"]), data.get("root")
    folder = PurePath(str(root)).name if root else ""
    return f"{name} {folder}" if folder and folder != name else name


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it.

    Attributes:
        info: the settings that determined the numbers.
        rounds: the rounds so far, round 0 first.
        costs: time and memory.
    """

    info: RunInfo
    rounds: Sequence[Round] = ()
    costs: Costs = field(default_factory=Costs)

    def until(self, round_: int) -> Run:
        """Return the run without the rounds after `round_`."""
        return replace(self, rounds=[done for done in self.rounds if done.round <= round_])

    @property
    def done(self) -> int:
        """Return the last finished round; -1 without any."""
        return self.rounds[-1].round if self.rounds else -1

    @property
    def is_finished(self) -> bool:
        """Return True if no rounds remain."""
        return self.done >= self.info.planned

    @property
    def best(self) -> Round | None:
        """Return the first round with the highest local accuracy on the images of `report.select`.

        None if `report.select` is "validation" and there are no validation images.
        """
        number = self.best_round(HEADLINE)
        return next((done for done in self.rounds if done.round == number), None)

    @property
    def final(self) -> Round | None:
        """Return the last evaluated round."""
        return next((done for done in reversed(self.rounds) if HEADLINE in done.metrics), None)

    def work(self, of: Literal["client", "server"]) -> Work | None:
        """Return the computation in all rounds; None if a round was not counted."""
        parts = [getattr(done, f"{of}_work") for done in self.rounds]
        return None if None in parts else Work.total(parts)

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric by round, for the rounds in which it was measured."""
        return {r.round: r.metrics[metric] for r in self.rounds if metric in r.metrics}

    def best_round(self, metric: str) -> int | None:
        """Return the best round of a metric, see `chosen_by`; None if no images select it."""
        curve = self.curve(metric)
        measured = {name for done in self.rounds if done.round > 0 for name in done.metrics}
        name = chosen_by(self.info.metric(metric), measured, self.info.select)
        if name is None:
            return None
        chooser = {round_: value for round_, value in self.curve(name).items() if round_ in curve}
        return best_round(chooser, self.info.metric(name).direction)

    def value(self, metric: str, at: Literal["best", "final"], chooser: str) -> float | None:
        """Return a metric in the best round of the metric `chooser`, or in its last round.

        None if there is no such round, or it did not measure the metric.
        """
        curve = self.curve(metric)
        if at == "best":
            best = self.best_round(chooser)
            return None if best is None else curve.get(best)
        return list(curve.values())[-1] if curve else None
