"""Local: every client trains alone; many methods equal it when their own term has weight 0."""

from __future__ import annotations

from fedray.core import LocalTraining, algorithms


@algorithms.add
class Local(LocalTraining):
    """Local training with the cross-entropy, without communication."""

    name = "local"
    title = "Local"
    paper = "-"
    travels = "nothing"
    dense = True
