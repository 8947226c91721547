"""`python -m fedray.report.cost DIR [DIR ...]`: what it takes to get somewhere.

FedGLCL Table 15 and section 5.4: seconds of local training per client and round, the round with the
best value, and the first round that reaches a target. Seconds are measured where the steps ran:
they depend on the machine and on what else it did, and are no part of what is the same bit for bit.
Runs of before they were measured have none.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence

from fedray.command import CommandLine, as_word, run_command
from fedray.errors import UserError
from fedray.files import write_atomic
from fedray.records import HEADLINE, Metric
from fedray.report.cells import NOTHING, cell, pretty
from fedray.report.command import NO_BEST, add_folders, add_select, out_folder
from fedray.report.runs import Group, LoadedRun, Stat, group, how_chosen, load, metric_of
from fedray.report.section import markdown_table
from fedray.report.table import ordered

SECONDS = Metric("seconds", "number", "min", None)
ROUNDS = Metric("rounds", "number", "min", None)


def parser() -> CommandLine:
    """The command line of `python -m fedray.report.cost`."""
    cli = CommandLine(
        prog="python -m fedray.report.cost",
        description="Seconds per client and round, rounds and megabytes until a target is reached.",
    )
    add_folders(cli)
    cli.add_argument("--metric", type=as_word, default=HEADLINE, help=f"default: {HEADLINE}")
    cli.add_argument(
        "--target",
        type=as_number,
        metavar="X",
        help="a value of the metric, accuracies between 0 and 1; default: the best mean of the "
        "worst method, which all of them reach",
    )
    add_select(cli)
    cli.add_debug()
    return cli


def as_number(text: str) -> float:
    """A finite number.

    Raises:
        ArgumentTypeError: for anything else.
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}' is no number, expected for example 0.7")
    return value


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(), _main, argv)


def _main(args: argparse.Namespace) -> int:
    runs = load(args.folders, args.select)
    metric = metric_of(runs, args.metric)
    groups, notes = group(runs)
    groups = [g for g in ordered(groups, metric, "best") if g.stat(metric.name, "final")]
    target = args.target if args.target is not None else easiest(groups, metric)
    rows = [cells(member, metric, target) for member in groups]
    shown = f"{100 * target:.2f} %" if metric.is_share else f"{target:.4g}"
    head = ("method", "n", "client s", "best round", "client s to it", f"to {shown}", "MB to it")
    lines = markdown_table(head, rows)
    lines += [
        "",
        f"{pretty(metric)}; client s: seconds of a client's steps per round, and in all up to its "
        f"best round ({how_chosen(groups, 'best')}); to {shown}: the first round that reaches it, "
        "of the seeds that do; MB of all "
        "clients until then. Mean ± standard deviation over seeds.",
    ]
    lines += [f"\n**Warning:** {note}." for note in notes]
    table = out_folder(args) / "cost.md"
    write_atomic(table, "\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"wrote {table}")
    return 0


def easiest(groups: Sequence[Group], metric: Metric) -> float:
    """The worst of the groups' best means: what all reach.

    Raises:
        UserError: when no run has a best round.
    """
    best = [stat.mean for each in groups if (stat := each.stat(metric.name, "best"))]
    if not best:
        raise UserError(NO_BEST)
    return max(best) if metric.direction == "min" else min(best)


def cells(member: Group, metric: Metric, target: float) -> tuple[str, ...]:
    """A line: label, seeds, seconds, best round, seconds up to it, rounds and MB to the target."""
    timed = [seconds for run in member.runs if (seconds := client_seconds(run)) is not None]
    best = [found for run in member.runs if (found := best_round(run, metric)) is not None]
    until = [
        seconds
        for run in member.runs
        if (found := best_round(run, metric)) is not None
        and (seconds := client_seconds(run, until=found)) is not None
    ]
    reached = [
        (found, run.traffic()[found] / 1e6)
        for run in member.runs
        if (found := first_round(run, metric, target)) is not None
    ]
    few = "" if len(reached) == len(member.runs) else f" ({len(reached)} of {len(member.runs)})"
    return (
        member.label,
        str(len(member.runs)),
        _cell([seconds.mean for seconds in timed], SECONDS),
        _cell([float(found) for found in best], ROUNDS),
        _cell([seconds.mean * seconds.n for seconds in until], SECONDS),
        _cell([float(found) for found, _ in reached], ROUNDS) + few,
        _cell([size for _, size in reached], ROUNDS),
    )


def _cell(values: Sequence[float], unit: Metric) -> str:
    return cell(Stat.of(values), unit) if values else NOTHING


def client_seconds(run: LoadedRun, until: int | None = None) -> Stat | None:
    """Seconds of a client's steps per round, from round 1 on; None where they were not measured.

    Args:
        run: with its rounds.
        until: the last round that counts; None for all.
    """
    values = [
        done.client_seconds
        for done in run.run.rounds
        if done.round > 0
        and done.client_seconds is not None
        and (until is None or done.round <= until)
    ]
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return Stat(statistics.fmean(values), spread, len(values))


def best_round(run: LoadedRun, metric: Metric) -> int | None:
    """The metric's best round; None where nothing may choose."""
    return run.run.best_round(metric.name)


def first_round(run: LoadedRun, metric: Metric, target: float) -> int | None:
    """The first evaluated round whose value is at least as good as the target; None for never."""
    for round_, value in run.run.curve(metric.name).items():
        if value <= target if metric.direction == "min" else value >= target:
            return round_
    return None


if __name__ == "__main__":
    raise SystemExit(main())
