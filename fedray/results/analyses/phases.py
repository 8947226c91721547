"""Effect of changing data and joining clients on metrics (FedTSP's supplementary H.1, H.2).

A run's rounds are split at phases of `data.evolution` and where clients join. For every part, this
analysis reports the best and the last value, and the change between its first evaluation and the
last one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from fedray.base.errors import UserError
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import LoadedRun, RunGroup, interval_of, metric_of, selection_label
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.page import Section
from fedray.storage.metric import Metric

SHOWN = ("local_accuracy", "earlier_accuracy", "new_accuracy", "global_test_accuracy")


@analysis()
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Compare metrics before and after the data changes or clients join."""
    runs, groups, rows = request.runs, request.groups, list[list[str]]()
    measured = {name for loaded in runs for done in loaded.run.rounds for name in done.metrics}
    names = [name for name in SHOWN if name in measured]
    every = sorted({cut for member in groups for cut in changes(member.runs[0].run.info.config)})
    if not every:
        raise UserError(
            f"{runs[0].folder}: nothing changes in this run; set data.evolution.phases, or "
            "join.clients and join.round"
        )
    for member, name in product(groups, names):
        # a run without changes is split where others change
        cuts = changes(member.runs[0].run.info.config) or every
        rows += _rows(member, metric_of(runs, name), cuts)
    best_label = selection_label(groups, "best")
    header = ["method", "metric", "rounds", "n", best_label, "last", "change at its beginning"]
    below = (
        f"The {best_label} is over the rounds of the part. Change: the part's first evaluation "
        f"minus the last one before it. Mean {SPREAD} n seeds."
    )
    return [Section("", (), header, rows, [below])]


def _rows(member: RunGroup, metric: Metric, cuts: Sequence[int]) -> Iterator[list[str]]:
    """Yield a line for each part of the runs, whose first rounds are 1 and `cuts`."""
    for first, end in pairwise([1, *cuts, member.runs[0].run.info.planned + 1]):
        parts = [part_of(loaded, metric, first, end) for loaded in member.runs]
        best, last, change = (interval_of(values, metric) for values in zip(*parts, strict=True))
        if last is not None:
            texts = [cell(best, metric), cell(last, metric), cell(change, metric, "+")]
            yield [member.label, metric.name, f"{first} to {end - 1}", str(last.n), *texts]


def changes(config: Mapping[str, Any]) -> Sequence[int]:
    """Return the rounds at which a run changes, in ascending order."""
    phases = config["data"].get("evolution", {}).get("phases", ())
    rounds = {int(phase["round"]) for phase in phases}
    if config["join"]["clients"]:
        rounds.add(int(config["join"]["round"]))
    return sorted(round_ for round_ in rounds if 1 < round_ <= config["rounds"])


def part_of(
    loaded: LoadedRun, metric: Metric, first: int, end: int
) -> tuple[float | None, float | None, float | None]:
    """Return the best and the last value in the rounds from `first` until `end`, and the change.

    The change is from the last round before to the first one of the part. None if not measured.
    """
    curve = sorted(loaded.run.curve(metric.name).items())
    inside = [value for r, value in curve if first <= r < end]
    before = [value for r, value in curve if 0 < r < first]
    if not inside:
        return None, None, None
    part = replace(loaded.run, rounds=[r for r in loaded.run.rounds if first <= r.round < end])
    best = part.value(metric.name, "best", metric.name)
    return best, inside[-1], inside[0] - before[-1] if before else None
