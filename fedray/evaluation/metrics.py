"""The registry of measures, and the data that measures compute metrics from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import chain
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedray.base.errors import FedrayError, NotFinite, UserError, shown
from fedray.config.registry import Registry
from fedray.core import Algorithm
from fedray.evaluation.answers import NO_ANSWERS, Answers, Counts
from fedray.evaluation.protocols import analysis_metrics
from fedray.evaluation.splits import OWN
from fedray.storage.metric import VALIDATION, Metric, Select, counterpart, find_metric

NEAR = 0.8
"""Similarity (of `difflib`) from which a metric's name counts as a spelling mistake."""


@dataclass(frozen=True, eq=False)
class DataFacts:
    """Facts about the data and their use that measures need.

    Attributes:
        splits: the names of the splits on which clients are tested, in the order of the counts.
        domains: the clients of each domain, if clients have one.
        majority: each client's majority classes, by its training images, bool [N, C]; None if
            unknown.
        dense_classes: for dense prediction, the class names, background first.
        top_k: k of the additional top-k accuracy, or None.
        newcomers: the clients that join late.
        select: the images that select an epoch of fine-tuning.
    """

    splits: Sequence[str] = (OWN,)
    domains: Mapping[str, Sequence[int]] = field(default_factory=dict)
    majority: NDArray[np.bool_] | None = None
    dense_classes: Sequence[str] = ()
    top_k: int | None = None
    newcomers: Sequence[int] = ()
    select: Select = "validation"


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The results of one round, the input of measures.

    Counts are int64 [..., S, 3, C]: for S splits in the order of `facts.splits`, right answers,
    images and predictions of each class, and a fourth row with `evaluation.top_k` (see `Answers`).

    Attributes:
        facts: facts about the data.
        counts: the counts of all N clients, [N, S, 3, C]; None if the round was not evaluated.
        joined: the clients that have joined.
        has_global_model: whether all clients predict with one model.
        cross_evaluations: by name, the counts of each model on the splits of K clients,
            [K, S, 3, C].
        fine_tuned: the counts before fine-tuning and after each of E epochs, [N, E + 1, S, 3, C].
        numbers: metrics of the round that do not depend on a test, such as the training loss.
        prefix: "validation/" if measures read the validation images in place of the test images.
    """

    facts: DataFacts
    counts: Counts | None = None
    joined: Sequence[int] = ()
    has_global_model: bool = False
    cross_evaluations: Mapping[str, Sequence[Counts]] = field(default_factory=dict)
    fine_tuned: Counts | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    prefix: str = ""

    def on_validation(self) -> Evaluated | None:
        """Return the same models' results on validation images; None if there are none."""
        if self.counts is None or VALIDATION + OWN not in self.facts.splits:
            return None
        return replace(self, numbers={}, prefix=VALIDATION)

    @cached_property
    def tested(self) -> Answers:
        """Return the answers of the clients that have joined, on their own images."""
        return self.on(OWN)

    def on(self, split: str, clients: ArrayLike | None = None) -> Answers:
        """Return the answers on a split; clients without images in it are left out.

        Args:
            split: "test" for each client's own images, or the name of a set that clients share.
            clients: ids of clients, by default of all that have joined.
        """
        if self.counts is None or self.prefix + split not in self.facts.splits:
            return NO_ANSWERS
        ids = np.array(self.joined if clients is None else clients, dtype=np.int64)
        counts = self.of_split(self.counts, split)[ids]
        has_images = counts[:, 1].any(axis=1)
        return Answers(counts[has_images], ids[has_images])

    def of_split(self, counts: Counts, split: str = OWN) -> Counts:
        """Return the part [..., 3, C] of counts [..., S, 3, C] that belongs to a split."""
        return counts[..., self.facts.splits.index(self.prefix + split), :, :]


class Measure(ABC):
    """A measurement of a round: the metrics of one computation.

    A measure also runs on the answers on validation images; these metrics are named
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


@lru_cache(maxsize=4096)
def _declaration(owner: type, name: str) -> Metric:
    """Return a number's declaration by the measure, or by the method that analyses itself.

    Raises:
        FedrayError: if there is none.
    """
    declared = owner.metrics if issubclass(owner, Measure) else analysis_metrics(owner)
    if (found := find_metric(name, declared)) is None:
        raise FedrayError(f"{owner.__name__} returned '{name}', which it does not declare")
    return found


def measure(evaluated: Evaluated) -> dict[str, float]:
    """Return the numbers of all registered measures for a round, on test and on validation images.

    Raises:
        FedrayError: if a measure returns a number that it does not declare, or that another
            measure has returned.
    """
    numbers: dict[str, float] = {}
    entries = metrics.entries()
    for view in filter(None, (evaluated, evaluated.on_validation())):
        for entry in entries:
            if values := entry().compute(view):
                add_declared(numbers, values, entry, view.prefix)
    return numbers


def add_declared(
    target: dict[str, float],
    values: Mapping[str, float],
    owner: type,
    prefix: str = "",
) -> None:
    """Add numbers to `target`; each must be declared.

    Args:
        target: the numbers so far, which are extended.
        values: the numbers to add, by name.
        owner: the measure or the method that declares them.
        prefix: goes before the names; if there is one, metrics that only the test images have are
            left out.

    Raises:
        FedrayError: if a number is not declared, or if `add_metrics` raises it.
    """
    declared = {name: _declaration(owner, name) for name in values}
    names = [name for name in values if not prefix or _has_counterpart(owner, declared[name])]
    add_metrics(target, {prefix + name: values[name] for name in names})


def _has_counterpart(entry: type, metric: Metric) -> bool:
    """Return True if a metric of a measure is also measured on validation images."""
    return metric.on == "test" and metric.name not in getattr(entry, "only_on_test", ())


def add_metrics(target: dict[str, float], values: Mapping[str, float]) -> None:
    """Add numbers to `target`, which must not contain their names.

    Raises:
        FedrayError: if a name exists already, because a measured number is never replaced, or if
            a value is not a finite number.
    """
    for name, value in values.items():
        if name in target:
            raise FedrayError(f"the metric '{name}' already exists; choose another name")
        if not isinstance(value, int | float) or not -math.inf < value < math.inf:
            error = NotFinite if isinstance(value, float) else FedrayError
            raise error(f"the metric '{name}' is {value!r}, expected a finite number")
        target[name] = value


def check_domains(names: Sequence[str]) -> None:
    """Refuse domains whose metrics would have the name of another metric.

    Raises:
        UserError: for the first such domain.
    """
    declared = [metric.name for metric in declared_metrics()]
    templates = [name for name in declared if "{domain}" in name]
    by_domain = {d: [template.replace("{domain}", d) for template in templates] for d in names}
    times = Counter(chain(declared, *by_domain.values()))
    for domain, own in by_domain.items():
        if taken := [name for name in own if times[name] > 1]:
            raise UserError(
                f"the metric of the domain {shown(domain)} would be '{taken[0]}', the name of "
                "another metric; rename the domain"
            )


def lacks(method: type[Algorithm], name: str) -> bool:
    """Return True if a number exists, but only for methods of another kind."""
    name = name.removeprefix(VALIDATION)
    measures = [entry for entry in metrics.entries() if find_metric(name, entry.metrics)]
    is_measured = not measures or any(entry.applies_to(method) for entry in measures)
    return not is_measured and find_metric(name, analysis_metrics(method)) is None


def check_spelling(method: type[Algorithm], name: str) -> None:
    """Refuse an unknown metric whose name is similar to that of a known metric.

    Raises:
        UserError: with the known name.
    """
    declared = (*declared_metrics(), *analysis_metrics(method))
    near = get_close_matches(name, [metric.name for metric in declared], n=1, cutoff=NEAR)
    if near and find_metric(name, declared) is None:
        raise UserError(f"there is no metric {shown(name)}. Did you mean '{near[0]}'?")


def declared_metrics() -> tuple[Metric, ...]:
    """Return the metrics that all registered measures declare, on test and validation images."""
    declared = [(entry, metric) for entry in metrics.entries() for metric in entry.metrics]
    held = [counterpart(metric) for entry, metric in declared if _has_counterpart(entry, metric)]
    return (*(metric for _, metric in declared), *held)
