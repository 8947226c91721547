"""Counts of answers by hand, as tests of clients return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedray.evaluation.metrics import DataFacts, Evaluated
from fedray.runtime.groups import GroupRunner, Member

ByClass = int | Sequence[int]


def counted(right: ByClass, images: ByClass, predicted: ByClass | None = None) -> np.ndarray:
    """Counts [3, C] of one model, by class; predictions are as many as images."""
    rows = right, images, images if predicted is None else predicted
    return np.array([np.atleast_1d(row) for row in rows], dtype=np.int64)


def counts_of(*clients: tuple[ByClass, ...]) -> np.ndarray:
    """Counts [N, 1, 3, C] of clients that are tested on their own test images alone."""
    return np.stack([counted(*client) for client in clients])[:, None]


def evaluated(*clients: tuple[ByClass, ...], **facts: Any) -> Evaluated:
    """A round in which these clients were tested, under facts about the data."""
    return Evaluated(DataFacts(**facts), counts_of(*clients), range(len(clients)))


def run_tests(
    runtime: GroupRunner, *groups: Sequence[int], state: Any = None, down: Any = None, r: int = 1
) -> np.ndarray:
    """The counts of groups of clients that have one model, in round `r`."""
    firsts = [Member(group[0], state, down) for group in groups]
    return runtime.test("evaluate", r, groups, firsts)
