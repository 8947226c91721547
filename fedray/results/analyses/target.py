"""Rounds, seconds and megabytes until a target is reached (FedGLCL Table 15, Sec. 5.4).

Seconds of local training are wall-clock times of client steps: they depend on the machine and its
load, and are not reproducible bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from fedray.base.errors import UserError
from fedray.command import WORD
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import (
    NO_BEST,
    LoadedRun,
    RunGroup,
    group_runs,
    interval_of,
    metric_of,
    rank_groups,
    selection_label,
)
from fedray.results.numbers import scale_of
from fedray.results.pages.cells import SPREAD, cell, metric_name
from fedray.results.pages.page import Section
from fedray.results.paired import Interval, t_interval
from fedray.storage.metric import HEADLINE, Metric

NUMBER = Metric("number", "number", "min", None)


@analysis(
    click.Option(["--metric"], type=WORD, default=HEADLINE, show_default=True),
    click.Option(
        ["--target"],
        type=float,
        metavar="X",
        help="A value of the metric, accuracies between 0 and 1; default: the best mean of the "
        "worst method, which all methods reach.",
    ),
)
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Return seconds per client and round, rounds and megabytes until a target is reached."""
    metric = metric_of(request.runs, request.options["metric"])
    groups = [
        member
        for member in rank_groups(group_runs(request.runs, metric.name)[0], metric, "best")
        if member.by_seed(metric, "final")
    ]
    target = request.options["target"]
    if target is None:
        target = easiest_target(groups, metric)
    if not math.isfinite(target):
        raise UserError(f"--target {target}: a finite number is expected, for example 0.7")
    shown = f"{100 * target:.2f} %" if metric.is_share else f"{target:.4g}"
    header = ["method", "n", "client s", "best round", "client s to it", f"to {shown}", "MB to it"]
    below = (
        f"{metric_name(metric)}; client s: seconds of a client's steps per round, and in all up to "
        f"its best round ({selection_label(groups, 'best')}); to {shown}: the first round that "
        f"reaches it, of the seeds that do; MB of all clients until then. Mean {SPREAD} seeds."
    )
    rows = [cells(member, metric, target) for member in groups]
    return [Section("", (), header, rows, [below])]


def easiest_target(groups: Sequence[RunGroup], metric: Metric) -> float:
    """Return the worst of the groups' best means, a target that all groups reach.

    Raises:
        UserError: if no run has a best round.
    """
    found = [member.interval(metric, "best") for member in groups]
    best = [interval.mean / scale_of(metric) for interval in found if interval is not None]
    if not best:
        raise UserError(NO_BEST)
    return max(best) if metric.direction == "min" else min(best)


def cells(member: RunGroup, metric: Metric, target: float) -> list[str]:
    """Return a group's line: label, seeds, seconds, best round, rounds and MB to the target."""
    best = {loaded: loaded.run.best_round(metric.name) for loaded in member.runs}
    timed = [client_seconds(loaded) for loaded in member.runs]
    until = [
        client_seconds(loaded, round_) for loaded, round_ in best.items() if round_ is not None
    ]
    reached = [
        (round_, loaded.traffic()[round_] / 1e6)
        for loaded in member.runs
        if (round_ := first_round(loaded, metric, target)) is not None
    ]
    few = "" if len(reached) == len(member.runs) else f" ({len(reached)} of {len(member.runs)})"
    columns: list[list[float | None]] = [
        [None if seconds is None else seconds.mean for seconds in timed],
        [None if round_ is None else float(round_) for round_ in best.values()],
        [None if seconds is None else seconds.mean * seconds.n for seconds in until],
        [round_ for round_, _ in reached],
        [size for _, size in reached],
    ]
    texts = [cell(interval_of(values, NUMBER), NUMBER) for values in columns]
    texts[3] += few
    return [member.label, str(len(member.runs)), *texts]


def client_seconds(run: LoadedRun, until: int | None = None) -> Interval | None:
    """Return the seconds of a client's steps per round, from round 1; None if not measured.

    Args:
        run: the run.
        until: the last round that counts; None: all rounds.
    """
    values = [
        done.client_seconds
        for done in run.run.rounds
        if done.round > 0
        and done.client_seconds is not None
        and (until is None or done.round <= until)
    ]
    return t_interval(values) if values else None


def first_round(run: LoadedRun, metric: Metric, target: float) -> int | None:
    """Return the first evaluated round that reaches the target, or None."""
    for round_, value in run.run.curve(metric.name).items():
        if value <= target if metric.direction == "min" else value >= target:
            return round_
    return None
