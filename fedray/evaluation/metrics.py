"""The registry of what is measured in a round, and what the measures see."""

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
from fedray.records import VALIDATION, Metric, Select, counterpart, find_metric
from fedray.registry import Registry

NEAR = 0.8
"""From this likeness on (of `difflib`) a metric's name is a slip of the pen."""


@dataclass(frozen=True)
class DataFacts:
    """What measures need to know of the data.

    Attributes:
        domains: the clients of each domain, where clients have one.
        majority: each client's majority classes, by its training images.
        dense_classes: in dense prediction the classes' names, the background first.
    """

    domains: Mapping[str, Sequence[int]] = field(default_factory=dict)
    majority: Sequence[Collection[int]] = ()
    dense_classes: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluated:
    """One round as the measures see it.

    Attributes:
        facts: of the data.
        scores: of the clients that have joined, on their own test splits; empty where the round
            was not evaluated.
        newcomers: of the clients that come later.
        has_global_model: whether all clients predict with one model.
        cross_evaluations: by name, for each model its scores on clients' test splits.
        fine_tuned: for each client its scores before and after each epoch of fine-tuning.
        train_losses: of the clients that trained.
        spent: epsilon after the round, where privacy was asked for.
        lr: the clients' learning rate, where it changes over rounds.
        select: on which images an epoch or the like may be chosen.
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
        """Return the same models on validation images; None where nobody was tested on some."""
        scores = _held(self.scores)
        if not scores:
            return None
        return Evaluated(
            self.facts,
            scores=scores,
            newcomers=_held(self.newcomers),
            has_global_model=self.has_global_model,
            cross_evaluations={
                name: [list(_held(dict(enumerate(model))).values()) for model in models]
                for name, models in self.cross_evaluations.items()
            },
            fine_tuned=[list(_held(dict(enumerate(each))).values()) for each in self.fine_tuned],
            select="test",  # validation images choose for themselves
        )

    @cached_property
    def tested(self) -> dict[int, Score]:
        """The scores of the clients that have test images, by client in order."""
        return {client: score for client, score in sorted(self.scores.items()) if score.total}


def _held(scores: Mapping[int, Score]) -> dict[int, Score]:
    """Return the scores on validation images."""
    return {k: score.validation for k, score in scores.items() if score.validation is not None}


class Measure(ABC):
    """Something that is measured in a round: one or several metrics of one computation.

    What it gives on test images it gives on validation images too, as `validation/NAME`: there it
    is asked again, of the scores on these.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    """What it may give."""
    only_on_test: ClassVar[tuple[str, ...]] = ()
    """Metrics of the test that validation images cannot give, such as those of novel classes."""

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        """Return whether runs of a method can have its metrics."""
        return True

    @abstractmethod
    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Return the metrics that apply to this round, by name; none where it does not."""


metrics: Registry[type[Measure]] = Registry("metric", "fedray.evaluation.measures")


def add_declared(
    found: dict[str, float], given: Mapping[str, float], declared: Sequence[Metric], giver: str
) -> None:
    """Add numbers, each of which must have been declared.

    Args:
        found: what they are added to.
        given: the numbers by name.
        declared: what they mean.
        giver: who gives them, for messages.

    Raises:
        FedrayError: when one is not declared, and as `add_metric`.
    """
    for name, value in given.items():
        if not any(metric.matches(name) for metric in declared):
            raise FedrayError(f"{giver} gives '{name}', which it has not declared")
        add_metric(found, name, value)


def measure(evaluated: Evaluated) -> dict[str, float]:
    """Return what all registered measures find in a round, on the test and on validation images.

    Raises:
        FedrayError: when one of them gives a number that it has not declared, or that another
            one has given.
    """
    found: dict[str, float] = {}
    held: dict[str, float] = {}
    validated = evaluated.on_validation()
    for entry in metrics.entries():
        giver = f"metric {entry.name}"
        add_declared(found, entry().compute(evaluated), entry.metrics, giver)
        if validated is not None:
            again = _of_images(entry().compute(validated), entry.metrics)
            add_declared(held, again, _on_validation(entry), giver)
    return {**found, **held}


def _of_images(given: Mapping[str, float], declared: Sequence[Metric]) -> dict[str, float]:
    """Return the numbers about test images, by their names on validation images."""
    named = {name: (find_metric(name, declared), value) for name, value in given.items()}
    return {
        f"{VALIDATION}{name}": value
        for name, (metric, value) in named.items()
        if metric is None or metric.on == "test"
    }


def _on_validation(entry: type[Measure]) -> list[Metric]:
    return [
        counterpart(metric)
        for metric in entry.metrics
        if metric.on == "test" and metric.name not in entry.only_on_test
    ]


def add_metric(found: dict[str, float], name: str, value: float) -> None:
    """Add a number that nothing else may have given.

    Raises:
        FedrayError: when it is there already: a measured number is never replaced; or when it is
            not a finite number.
    """
    if name in found:
        raise FedrayError(f"the metric '{name}' is measured already; give yours another name")
    if not isinstance(value, int | float) or not math.isfinite(value):
        error = NotFinite if isinstance(value, float) else FedrayError
        raise error(f"the metric '{name}' is {value!r}, expected a finite number")
    found[name] = value


def check_domains(names: Sequence[str]) -> None:
    """Refuse domains whose metrics would have the name of another metric.

    Raises:
        UserError: naming the first such domain.
    """
    declared = [metric.name for metric in declared_metrics()]
    owners = dict.fromkeys((name for name in declared if "{" not in name), "")
    for template in (name for name in declared if "{domain}" in name):
        for domain in names:
            name = template.replace("{domain}", domain)
            owner = owners.setdefault(name, domain)
            if owner != domain:
                whose = f"a metric of the domain {shown(owner)}" if owner else "another metric"
                raise UserError(
                    f"the domain {shown(domain)} would be measured as '{name}', which is the name "
                    f"of {whose}; rename the domain"
                )


def lacks(method: type[Algorithm], name: str) -> bool:
    """Return whether only methods of another kind have a number."""
    name = name.removeprefix(VALIDATION)
    givers = [entry for entry in metrics.entries() if find_metric(name, entry.metrics)]
    own = find_metric(name, analysis_metrics(method))
    return bool(givers) and own is None and not any(each.applies_to(method) for each in givers)


def check_spelling(method: type[Algorithm], name: str) -> None:
    """Refuse a number that nothing declares and that is nearly one that something does.

    Raises:
        UserError: with that one.
    """
    known = (*declared_metrics(), *analysis_metrics(method))
    near = get_close_matches(name, [metric.name for metric in known], n=1, cutoff=NEAR)
    if near and find_metric(name, known) is None:
        raise UserError(f"there is no metric {shown(name)}. Did you mean '{near[0]}'?")


def declared_metrics() -> tuple[Metric, ...]:
    """Return what all registered measures' numbers mean, on test and validation images."""
    entries = metrics.entries()
    on_test = [metric for entry in entries for metric in entry.metrics]
    return (*on_test, *(metric for entry in entries for metric in _on_validation(entry)))
