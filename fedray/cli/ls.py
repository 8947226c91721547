"""What can be chosen by name: `python -m fedray ls [KIND] [--json]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from fedray.cli.catalogue import KINDS, Entry, entries
from fedray.command import CommandLine, add_plugin, run_command
from fedray.config import read_plugins
from fedray.plugins import use

PROG = "fedray ls"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray ls`."""
    cli = CommandLine(prog=prog, description="List what can be chosen by name.")
    cli.add_argument("kind", choices=list(KINDS), metavar="KIND", help=f"one of {', '.join(KINDS)}")
    cli.add_argument("--json", action="store_true", help="with all parameters, for programs")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), ls, argv)


def ls(args: argparse.Namespace) -> int:
    """Print one line for each entry; returns the exit code."""
    use(read_plugins(args.plugin), check=True)
    found = entries(args.kind)
    if args.json:
        print(json.dumps([asdict(entry) for entry in found], indent=1, ensure_ascii=False))
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in found:
        table.add_row(entry.name, _line(entry))
    Console(highlight=False).print(table)
    return 0


def _line(entry: Entry) -> str:
    paper = f"  [dim]{entry.paper}[/dim]" if entry.paper != "-" else ""
    return f"{entry.summary}{paper}"
