"""Effect of changing data and joining clients on metrics (FedTSP's supplementary H.1, H.2).

A run's rounds are split at phases of `data.evolution` and where clients join. For every part, this
analysis reports the best and the last value, and the change between its first evaluation and the
last one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import click

from fedray.base.errors import UserError
from fedray.command import WORD
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import LoadedRun, RunGroup, interval_of, metric_of, selection_label
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.page import Section
from fedray.storage.metric import Metric

USUAL = ("local_accuracy", "earlier_accuracy", "new_accuracy", "global_test_accuracy")


class Part(NamedTuple):
    """A metric in the rounds between two changes; fields are None if it was not measured."""

    best: float | None
    last: float | None
    change: float | None


@analysis(
    click.Option(
        ["--metric"],
        type=WORD,
        multiple=True,
        help=f"Repeatable; default: those measured of {', '.join(USUAL)}.",
    ),
)
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Compare metrics before and after the data changes or clients join."""
    runs, groups = request.runs, request.groups
    measured = {name for loaded in runs for done in loaded.run.rounds for name in done.metrics}
    names = request.options["metric"] or [name for name in USUAL if name in measured]
    metrics = [metric_of(runs, name) for name in names]
    cuts = common_changes(groups)
    rows = [row for member in groups for metric in metrics for row in rows_of(member, metric, cuts)]
    best = selection_label(groups, "best")
    header = ["method", "metric", "rounds", "n", best, "last", "change at its beginning"]
    below = (
        f"The {best} is over the rounds of the part. Change: the first evaluation of the part "
        f"minus the last one before it. Mean {SPREAD} n seeds."
    )
    return [Section("", (), header, rows, [below])]


def common_changes(groups: Sequence[RunGroup]) -> Sequence[int]:
    """Return the rounds at which any run changes; runs without changes are split there too.

    Raises:
        UserError: if no run changes.
    """
    cuts = {cut for member in groups for cut in changes(member.runs[0].run.info.config)}
    if not cuts:
        raise UserError(
            f"{groups[0].runs[0].folder}: nothing changes in this run; set data.evolution.phases, "
            "or join.clients and join.round"
        )
    return sorted(cuts)


def rows_of(member: RunGroup, metric: Metric, cuts: Sequence[int]) -> list[list[str]]:
    """Return a line for each part of the runs.

    Args:
        member: the runs.
        metric: the metric.
        cuts: first rounds of the parts, for runs without changes of their own.
    """
    cuts = changes(member.runs[0].run.info.config) or cuts
    rows = []
    for first, end in pairwise([1, *cuts, member.runs[0].run.info.planned + 1]):
        parts = [part_of(loaded, metric, first, end) for loaded in member.runs]
        cells = [interval_of(values, metric) for values in zip(*parts, strict=True)]
        if cells[1] is not None:
            texts = [
                *(cell(interval, metric) for interval in cells[:2]),
                cell(cells[2], metric, "+"),
            ]
            part = [f"{first} to {end - 1}", str(cells[1].n)]
            rows.append([member.label, metric.name, *part, *texts])
    return rows


def changes(config: Mapping[str, Any]) -> Sequence[int]:
    """Return the rounds at which a run changes, in ascending order."""
    phases = config["data"].get("evolution", {}).get("phases", ())
    rounds = {int(phase["round"]) for phase in phases}
    if config["join"]["clients"]:
        rounds.add(int(config["join"]["round"]))
    return sorted(round_ for round_ in rounds if 1 < round_ <= config["rounds"])


def part_of(loaded: LoadedRun, metric: Metric, first: int, end: int) -> Part:
    """Return a run's metric in the rounds from `first` until `end`."""
    curve = {r: value for r, value in loaded.run.curve(metric.name).items() if r > 0}
    inside = [value for r, value in sorted(curve.items()) if first <= r < end]
    before = [value for r, value in sorted(curve.items()) if r < first]
    if not inside:
        return Part(None, None, None)
    part = replace(loaded.run, rounds=[r for r in loaded.run.rounds if first <= r.round < end])
    best = part.value(metric.name, "best", metric.name)
    return Part(best, inside[-1], inside[0] - before[-1] if before else None)
