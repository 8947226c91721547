"""`fedray cost EXPERIMENT [key=value ...]`: what a method keeps, trains and sends."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from fedray.analyses.parameters import Component, Cost, costs
from fedray.command import CommandLine, add_plugin, run_command
from fedray.render.page import Section
from fedray.render.terminal import print_sections
from fedray.runtime.resolve import resolve
from fedray.units import size_of

COLUMNS = ("parameters", "trained", "memory", "up", "down")


PROG = "fedray cost"


def parser(prog: str = PROG) -> CommandLine:
    """Return the command line of `fedray cost`."""
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
    print_sections([_section(each) for each in found])
    return 0


def _section(cost: Cost) -> Section:
    """Return a side's components and their sum."""
    components = dict(cost.components)
    if len(components) > 1:
        components["in all"] = cost.total
    rows = [
        [name, *(_number(part, column) for column in COLUMNS)]
        for name, part in components.items()
        if any(getattr(part, column) for column in COLUMNS)
    ]
    first = cost.total.first
    below = [f"before round 1: {first:,} numbers"] if first else []
    for way, size in (("up", cost.up.bytes), ("down", cost.down.bytes)):
        if size:
            kinds = ", ".join(f"{kind} {size_of(count)}" for kind, count in size.items())
            below.append(f"bytes {way}: {kinds}")
    return Section("", (), [cost.side, *COLUMNS], rows, below)


def _number(part: Component, column: str) -> str:
    count = getattr(part, column)
    return "-" if not count else size_of(count) if column == "memory" else f"{count:,}"
