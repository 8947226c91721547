"""Local: every client trains alone, the lower bound that many methods must reduce to."""

from __future__ import annotations

from fedray.algorithms.base import Algorithm
from fedray.algorithms.registry import algorithms


@algorithms.add
class Local(Algorithm):
    """Cross-entropy on the client's own images; nothing travels."""

    name = "local"
    paper = "-"
    shares = "nothing"
    dense = True
