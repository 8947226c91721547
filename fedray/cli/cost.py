"""What a method keeps, trains and sends: `python -m fedray cost EXPERIMENT [key=value ...]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence

from fedray.analyses.parameters import Component, Cost, costs
from fedray.command import CommandLine, add_plugin, run_command
from fedray.runtime.resolve import resolve
from fedray.units import size_of

COLUMNS = ("parameters", "trained", "memory", "up", "down")
WIDE = 15


PROG = "fedray cost"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray cost`."""
    cli = CommandLine(prog=prog, description="Count what a method keeps, trains and sends.")
    cli.add_argument("experiment", help="a shipped name or a YAML file")
    cli.add_argument("set", nargs="*", metavar="key=value", help="for example algorithm=fedproto")
    cli.add_argument("--json", action="store_true", help="for programs")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), cost, argv)


def cost(args: argparse.Namespace) -> int:
    """Count in one exchange, and print a table for each side; returns the exit code."""
    experiment = resolve(args.experiment, args.set, args.plugin, trusted=False)
    found = costs(experiment)
    if args.json:
        print(json.dumps([each.tree() for each in found], indent=1))
        return 0
    data = experiment.data.source.name
    print(f"{experiment.algorithm.name} on {data}: numbers by component; up and down in a round")
    for each in found:
        print("\n".join(["", *_table(each)]))
    return 0


def _table(cost: Cost) -> list[str]:
    """A side's components and their sum, in 80 columns."""
    rows = [f"{cost.side:<{WIDE + 4}}" + "".join(f"{name:>12}" for name in COLUMNS)]
    rows += [
        _row(name, part)
        for name, part in cost.components.items()
        if any(getattr(part, each) for each in COLUMNS)
    ]
    if len(cost.components) > 1:
        rows.append(_row("in all", cost.total))
    first = cost.total.first
    if first:
        rows.append(f"  before round 1: {first:,} numbers")
    for way, size in (("up", cost.up.bytes), ("down", cost.down.bytes)):
        if size:
            rows.append(f"  bytes {way}: {_kinds(size)}")
    return rows


def _row(name: str, part: Component) -> str:
    numbers = {each: f"{getattr(part, each):,}" for each in COLUMNS}
    numbers["memory"] = size_of(part.memory)
    return f"  {name:<{WIDE + 2}}" + "".join(
        f"{'-' if not getattr(part, each) else numbers[each]:>12}" for each in COLUMNS
    )


def _kinds(size: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {size_of(count)}" for kind, count in size.items())
