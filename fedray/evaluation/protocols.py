"""Optional features that a method can offer to evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedray.core import Algorithm, Downlinks, Server, ServerState
from fedray.storage.metric import Metric


def has_global_model(method: Algorithm, state: ServerState) -> bool:
    """Return True if all clients currently predict with one model; its accuracy is then measured.

    A method of whom this may be true says so by `has_global_model(state)`.
    """
    says: Callable[[ServerState], bool] | None = getattr(method, "has_global_model", None)
    return says is not None and says(state)


@runtime_checkable
class CrossEvaluated(Protocol):
    """A method whose models are tested elsewhere than where they were trained."""

    def cross_evaluations(
        self, state: ServerState, server: Server
    ) -> Mapping[str, Sequence[Downlinks]]:
        """Return further models to test, by the first part of a metric's name, `<name>_accuracy`.

        Each model is given by downloads, which replace the clients' own ones for a test on their
        test splits. The metric is the mean over the models of the accuracy on all these images.
        """


@dataclass(frozen=True)
class Analysis:
    """The results of a method's analysis of its server state.

    Attributes:
        metrics: numbers by name, as `analysis_metrics` declares them.
        matrices: square [C, C] arrays by name, drawn as heat maps.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class Analysed(Protocol):
    """A method that analyses its server state, without any data.

    The class attribute `analysis_metrics` declares its numbers.
    """

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        """Return the numbers and matrices of one evaluated round."""


def analysis_metrics(algorithm: object) -> Sequence[Metric]:
    """Return the metrics that a method declares for its analyses; empty if it declares none."""
    declared: Sequence[Metric] = getattr(algorithm, "analysis_metrics", ())
    return declared
