"""The registry of measures, and the data that measures compute metrics from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import ClassVar

from fedray.core import Algorithm
from fedray.errors import FedrayError, NotFinite, UserError, shown
from fedray.evaluation.accountant import Spent
from fedray.evaluation.protocols import analysis_metrics
from fedray.evaluation.score import Score
from fedray.registry import Registry
from fedray.storage.metric import VALIDATION, Metric, Select, counterpart, find_metric

NEAR = 0.8
"""Similarity (of `difflib`) from which a metric's name counts as a spelling mistake."""


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data that measures need.

    Attributes:
        domains: the clients of each domain, if clients have one.
        majority: each client's majority classes, by its training images.
        dense_classes: for dense prediction, the class names, background first.
    """

    domains: Mapping[str, Sequence[int]] = field(default_factory=dict)
    majority: Sequence[Collection[int]] = ()
    dense_classes: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluated:
    """The results of one round, the input of measures.

    Attributes:
        facts: facts about the data.
        scores: scores of the clients that have joined, on their own test splits; empty if the round
            was not evaluated.
        newcomers: scores of the clients that join late.
        has_global_model: whether all clients predict with one model.
        cross_evaluations: by name, each model's scores on clients' test splits.
        fine_tuned: each client's scores before fine-tuning and after each epoch.
        train_losses: losses of the clients that trained.
        spent: epsilon after the round, if privacy is on.
        lr: the clients' learning rate, if it changes over rounds.
        select: the images that select an epoch of fine-tuning.
    """

    facts: DataFacts
    scores: Mapping[int, Score] = field(default_factory=dict)
    newcomers: Mapping[int, Score] = field(default_factory=dict)
    has_global_model: bool = False
    cross_evaluations: Mapping[str, Sequence[Sequence[Score]]] = field(default_factory=dict)
    fine_tuned: Sequence[Sequence[Score]] = ()
    train_losses: Sequence[float] = ()
    spent: Spent | None = None
    lr: float | None = None
    select: Select = "validation"

    def on_validation(self) -> Evaluated | None:
        """Return the same models' results on validation images; None if there are none."""
        scores = _validation_scores(self.scores)
        if not scores:
            return None
        return Evaluated(
            self.facts,
            scores=scores,
            newcomers=_validation_scores(self.newcomers),
            has_global_model=self.has_global_model,
            cross_evaluations={
                name: [
                    list(_validation_scores(dict(enumerate(model))).values()) for model in models
                ]
                for name, models in self.cross_evaluations.items()
            },
            fine_tuned=[
                list(_validation_scores(dict(enumerate(epochs))).values())
                for epochs in self.fine_tuned
            ],
            select="test",  # these scores select for themselves
        )

    @cached_property
    def tested(self) -> dict[int, Score]:
        """Return the scores of the clients that have test images, ordered by client."""
        return {client: score for client, score in sorted(self.scores.items()) if score.total}


def _validation_scores(scores: Mapping[int, Score]) -> dict[int, Score]:
    """Return the scores on validation images."""
    return {k: score.validation for k, score in scores.items() if score.validation is not None}


class Measure(ABC):
    """A measurement of a round: the metrics of one computation.

    A measure also runs on the scores on validation images; these metrics are named
    `validation/NAME`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """The version of the code; raised by a commit that changes its numbers."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The metrics that `compute` may return."""
    only_on_test: ClassVar[tuple[str, ...]] = ()
    """Metrics without a counterpart on validation images, such as those of novel classes."""

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        """Return True if runs of a method can have the metrics of this measure."""
        return True

    @abstractmethod
    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Return the metrics of the round by name; empty if the measure does not apply."""


metrics: Registry[type[Measure]] = Registry("metric", "fedray.evaluation.measures")


def add_declared(
    target: dict[str, float], values: Mapping[str, float], declared: Sequence[Metric], owner: str
) -> None:
    """Add numbers to `target`; each must be declared.

    Args:
        target: the numbers so far, which are extended.
        values: the numbers to add, by name.
        declared: the declared metrics.
        owner: the origin of the numbers, for messages.

    Raises:
        FedrayError: if a number is not declared, or if `add_metric` raises it.
    """
    for name, value in values.items():
        if not any(metric.matches(name) for metric in declared):
            raise FedrayError(f"{owner} returned '{name}', which it does not declare")
        add_metric(target, name, value)


def measure(evaluated: Evaluated) -> dict[str, float]:
    """Return the numbers of all registered measures for a round, on test and on validation images.

    Raises:
        FedrayError: if a measure returns a number that it does not declare, or that another
            measure has returned.
    """
    on_test: dict[str, float] = {}
    on_validation_images: dict[str, float] = {}
    validated = evaluated.on_validation()
    for entry in metrics.entries():
        owner = f"metric {entry.name}"
        add_declared(on_test, entry().compute(evaluated), entry.metrics, owner)
        if validated is not None:
            renamed = _validation_names(entry().compute(validated), entry.metrics)
            add_declared(on_validation_images, renamed, _on_validation(entry), owner)
    return {**on_test, **on_validation_images}


def _validation_names(values: Mapping[str, float], declared: Sequence[Metric]) -> dict[str, float]:
    """Return the metrics of test images, renamed to their counterparts on validation images."""
    with_metric = {name: (find_metric(name, declared), value) for name, value in values.items()}
    return {
        f"{VALIDATION}{name}": value
        for name, (metric, value) in with_metric.items()
        if metric is None or metric.on == "test"
    }


def _on_validation(entry: type[Measure]) -> list[Metric]:
    return [
        counterpart(metric)
        for metric in entry.metrics
        if metric.on == "test" and metric.name not in entry.only_on_test
    ]


def add_metric(target: dict[str, float], name: str, value: float) -> None:
    """Add a number to `target`, which must not contain its name.

    Raises:
        FedrayError: if the name exists already, because a measured number is never replaced, or if
            the value is not a finite number.
    """
    if name in target:
        raise FedrayError(f"the metric '{name}' already exists; choose another name")
    if not isinstance(value, int | float) or not math.isfinite(value):
        error = NotFinite if isinstance(value, float) else FedrayError
        raise error(f"the metric '{name}' is {value!r}, expected a finite number")
    target[name] = value


def check_domains(names: Sequence[str]) -> None:
    """Refuse domains whose metrics would have the name of another metric.

    Raises:
        UserError: for the first such domain.
    """
    declared = [metric.name for metric in declared_metrics()]
    owners = dict.fromkeys((name for name in declared if "{" not in name), "")
    for template in (name for name in declared if "{domain}" in name):
        for domain in names:
            name = template.replace("{domain}", domain)
            owner = owners.setdefault(name, domain)
            if owner != domain:
                description = (
                    f"a metric of the domain {shown(owner)}" if owner else "another metric"
                )
                raise UserError(
                    f"the metric of the domain {shown(domain)} would be '{name}', the name of "
                    f"{description}; rename the domain"
                )


def lacks(method: type[Algorithm], name: str) -> bool:
    """Return True if a number exists, but only for methods of another kind."""
    name = name.removeprefix(VALIDATION)
    measures = [entry for entry in metrics.entries() if find_metric(name, entry.metrics)]
    declared = find_metric(name, analysis_metrics(method))
    return (
        bool(measures)
        and declared is None
        and not any(entry.applies_to(method) for entry in measures)
    )


def check_spelling(method: type[Algorithm], name: str) -> None:
    """Refuse an unknown metric whose name is similar to that of a known metric.

    Raises:
        UserError: with the known name.
    """
    declared = (*declared_metrics(), *analysis_metrics(method))
    if find_metric(name, declared) is not None:
        return
    near = get_close_matches(name, [metric.name for metric in declared], n=1, cutoff=NEAR)
    if near:
        raise UserError(f"there is no metric {shown(name)}. Did you mean '{near[0]}'?")


def declared_metrics() -> tuple[Metric, ...]:
    """Return the metrics that all registered measures declare, on test and validation images."""
    entries = metrics.entries()
    on_test = [metric for entry in entries for metric in entry.metrics]
    return (*on_test, *(metric for entry in entries for metric in _on_validation(entry)))
