"""Local: every client trains alone, the lower bound that many methods must reduce to."""

from __future__ import annotations

from fedray.core import LocalTraining, algorithms


@algorithms.add
class Local(LocalTraining):
    """Cross-entropy on the client's own images; nothing is communicated."""

    name = "local"
    title = "Local"
    paper = "-"
    travels = "nothing"
    dense = True
