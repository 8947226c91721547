"""What a method may offer to evaluation; each is asked for, none is required."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedray.core import Downlinks, LocalContext, Server, ServerState
from fedray.records import Metric


@runtime_checkable
class HasGlobalModel(Protocol):
    """A method whose clients may all predict with one model, whose accuracy is measured then."""

    def has_global_model(self, state: ServerState) -> bool:
        """Return whether they do now; a method may come to it late."""


@runtime_checkable
class CrossEvaluated(Protocol):
    """A method whose models are tested elsewhere than where they were trained."""

    def cross_evaluations(
        self, state: ServerState, server: Server
    ) -> Mapping[str, Sequence[Downlinks]]:
        """Further models to test, by the name of a metric, `<name>_accuracy`.

        Each is what some clients are sent instead of their own download, to test it on their test
        splits; the metric is the mean over the models of the accuracy on all these images.
        """


@runtime_checkable
class FineTuned(Protocol):
    """A method that says how its models are fine-tuned after the last round."""

    def fine_tune(self, local: LocalContext) -> Iterator[LocalContext]:
        """Train on, `finetune_epochs` times; yield after each what is to be tested."""


@runtime_checkable
class ClassSubset(Protocol):
    """A model that can answer among classes other than those it was trained on."""

    def class_subset(self, classes: Sequence[int] | None) -> AbstractContextManager[None]:
        """Predict among these classes; None for those that were trained on."""


@dataclass(frozen=True)
class Analysis:
    """What a method says about its server state.

    Attributes:
        metrics: numbers by name, as `analysis_metrics` declares them.
        matrices: square [C, C] arrays by name, drawn as heat maps.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class Analysed(Protocol):
    """A method that can measure its own server state, without any data.

    The class attribute `analysis_metrics` declares its numbers.
    """

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        """Return the numbers and matrices of one evaluated round."""


def analysis_metrics(algorithm: object) -> Sequence[Metric]:
    """Return what the numbers of a method's analyses mean; none where it declares none."""
    declared: Sequence[Metric] = getattr(algorithm, "analysis_metrics", ())
    return declared
