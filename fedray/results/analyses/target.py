"""Rounds, seconds and megabytes until a target is reached (FedGLCL Table 15, Sec. 5.4).

Seconds of local training are wall-clock times of client steps: they depend on the machine and its
load, and are not reproducible bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import click

from fedray.base.errors import UserError
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
from fedray.storage.metric import HEADLINE, Metric

NUMBER = Metric("number", "number", "min", None)


@analysis(
    click.Option(["--metric"], default=HEADLINE, show_default=True),
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
    metric, target = metric_of(request.runs, request.options["metric"]), request.options["target"]
    ranked = rank_groups(group_runs(request.runs, metric.name)[0], metric, "best")
    groups = [member for member in ranked if member.by_seed(metric, "final")]
    if target is None:
        bests = [fmean(best.values()) for g in groups if (best := g.by_seed(metric, "best"))]
        if not bests:
            raise UserError(NO_BEST)
        worst = max(bests) if metric.direction == "min" else min(bests)
        target = worst / scale_of(metric)
    if not math.isfinite(target):
        raise UserError(f"--target {target}: a finite number is expected, for example 0.7")
    shown = f"{100 * target:.2f} %" if metric.is_share else f"{target:.4g}"
    header = ["method", "n", "client s", "best round", "client s to it", f"to {shown}", "MB to it"]
    below = (
        f"{metric_name(metric)}; client s: seconds of a client's steps per round, and in all up to "
        f"its best round ({selection_label(groups, 'best')}); to {shown}: the first round that "
        f"reaches it, of the seeds that do; MB of all clients until then. Mean {SPREAD} seeds."
    )
    rows = [_cells(member, metric, target) for member in groups]
    return [Section("", (), header, rows, [below])]


def _cells(member: RunGroup, metric: Metric, target: float) -> list[str]:
    """Return a group's line: label, seeds, seconds, best round, rounds and MB to the target."""
    columns = [*zip(*(_numbers(loaded, metric, target) for loaded in member.runs), strict=True)]
    texts = [cell(interval_of(values, NUMBER), NUMBER) for values in columns]
    n, count = len(member.runs), sum(reached is not None for reached in columns[3])
    texts[3] += "" if count == n else f" ({count} of {n})"
    return [member.label, str(n), *texts]


def _numbers(loaded: LoadedRun, metric: Metric, target: float) -> list[float | None]:
    """Return a run's seconds, best round, seconds to it, rounds and MB to the target."""
    best, reached = loaded.run.best_round(metric.name), first_round(loaded, metric, target)
    every, until = client_seconds(loaded), client_seconds(loaded, best or 0)
    return [
        fmean(every) if every else None,
        best,
        sum(until) if until else None,
        reached,
        None if reached is None else loaded.traffic()[reached] / 1e6,
    ]


def client_seconds(run: LoadedRun, until: float = math.inf) -> list[float]:
    """Return the seconds of a client's steps in each timed round from 1 to `until`."""
    rounds = [done for done in run.run.rounds if 0 < done.round <= until]
    return [done.client_seconds for done in rounds if done.client_seconds is not None]


def first_round(run: LoadedRun, metric: Metric, target: float) -> int | None:
    """Return the first evaluated round that reaches the target, or None."""
    sign = -1 if metric.direction == "min" else 1
    curve = run.run.curve(metric.name).items()
    return next((round_ for round_, value in curve if sign * value >= sign * target), None)
