"""`python -m fedray.report.phases DIR [DIR ...]`: what changing data and joining clients do.

FedTSP's supplementary H.1 and H.2 report the best accuracy before and after the change. A run's
rounds are cut where `data.evolution` has a phase and where `join` brings clients in; of every part,
the best and the last value, and what its first evaluation lost or won against the last one before.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from fedray.command import CommandLine, as_word, run_command
from fedray.errors import UserError
from fedray.files import write_atomic
from fedray.records import Metric
from fedray.report.cells import cell
from fedray.report.command import add_folders, add_select, out_folder
from fedray.report.runs import Group, LoadedRun, Stat, group, how_chosen, load, metric_of
from fedray.report.section import markdown_table

USUAL = ("local_accuracy", "earlier_accuracy", "new_accuracy", "global_test_accuracy")
HEADER = ("method", "metric", "rounds", "n", "{best}", "last", "change at its beginning")


class Part(NamedTuple):
    """A metric in the rounds between two changes; None where it was not measured there."""

    best: float | None
    last: float | None
    change: float | None


def parser() -> CommandLine:
    """The command line of `python -m fedray.report.phases`."""
    cli = CommandLine(
        prog="python -m fedray.report.phases",
        description="Metrics before and after the data changes or clients join.",
    )
    add_folders(cli)
    cli.add_argument(
        "--metric",
        type=as_word,
        action="append",
        help=f"may be given several times; default: those measured of {', '.join(USUAL)}",
    )
    add_select(cli)
    cli.add_debug()
    return cli


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(), _main, argv)


def _main(args: argparse.Namespace) -> int:
    runs = load(args.folders, args.select)
    groups, notes = group(runs)
    measured = {name for loaded in runs for done in loaded.run.rounds for name in done.metrics}
    names = args.metric or [name for name in USUAL if name in measured]
    metrics = [metric_of(runs, name) for name in names]
    cuts = common_changes(groups)
    rows = [row for each in groups for metric in metrics for row in rows_of(each, metric, cuts)]
    best = how_chosen(groups, "best")
    lines = [
        *markdown_table([name.format(best=best) for name in HEADER], rows),
        "",
        f"The {best} is over the rounds of the part. Change: the first evaluation "
        "of the part minus the last one before it. Mean ± standard deviation over n seeds.",
        *(f"\n**Warning:** {note}." for note in notes),
    ]
    file = out_folder(args) / "phases.md"
    write_atomic(file, "\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"wrote {file}")
    return 0


def common_changes(groups: Sequence[Group]) -> Sequence[int]:
    """Where anything changes in any of the runs: those in which nothing does are cut there too.

    Raises:
        UserError: when nothing changes in any.
    """
    found = {cut for member in groups for cut in changes(member.runs[0].run.info.config)}
    if not found:
        raise UserError(
            f"{groups[0].runs[0].folder}: nothing changes in this run; set data.evolution.phases, "
            "or join.clients and join.round"
        )
    return sorted(found)


def rows_of(member: Group, metric: Metric, cuts: Sequence[int]) -> list[tuple[str, ...]]:
    """A line for each part of the runs.

    Args:
        member: the runs.
        metric: what was measured.
        cuts: where the parts begin, for runs in which nothing changes; others have their own.
    """
    cuts = changes(member.runs[0].run.info.config) or cuts
    rows: list[tuple[str, ...]] = []
    for first, end in pairwise([1, *cuts, member.runs[0].run.info.planned + 1]):
        parts = [part_of(loaded, metric, first, end) for loaded in member.runs]
        best, last, change = (_stat(each) for each in zip(*parts, strict=True))
        if last is not None:
            sign = "+" if change is not None and change.mean >= 0 else ""
            cells = (cell(best, metric), cell(last, metric), sign + cell(change, metric))
            rows.append((member.label, metric.name, f"{first} to {end - 1}", str(last.n), *cells))
    return rows


def _stat(values: Sequence[float | None]) -> Stat | None:
    """Over the seeds that have one."""
    found = [value for value in values if value is not None]
    return Stat.of(found) if found else None


def changes(config: Mapping[str, Any]) -> Sequence[int]:
    """The first rounds of what changes in a run, in their order."""
    phases = config["data"].get("evolution", {}).get("phases", ())
    found = {int(phase["round"]) for phase in phases}
    if config["join"]["clients"]:
        found.add(int(config["join"]["round"]))
    return sorted(round_ for round_ in found if 1 < round_ <= config["rounds"])


def part_of(loaded: LoadedRun, metric: Metric, first: int, end: int) -> Part:
    """A run's metric in the rounds from `first` until `end`."""
    curve = {r: value for r, value in loaded.run.curve(metric.name).items() if r > 0}
    inside = [value for r, value in sorted(curve.items()) if first <= r < end]
    before = [value for r, value in sorted(curve.items()) if r < first]
    if not inside:
        return Part(None, None, None)
    part = replace(loaded.run, rounds=[r for r in loaded.run.rounds if first <= r.round < end])
    best = part.value(metric.name, "best")
    return Part(best, inside[-1], inside[0] - before[-1] if before else None)


if __name__ == "__main__":
    raise SystemExit(main())
