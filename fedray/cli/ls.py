"""What can be chosen by name: `python -m fedray ls [KIND] [--json]`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from fedray.cli.catalogue import KINDS, Entry, entries
from fedray.command import add_plugin
from fedray.config import read_plugins
from fedray.plugins import use


def add_arguments(cli: argparse.ArgumentParser) -> None:
    """Add the command's words."""
    cli.add_argument("kind", choices=list(KINDS), help="what to list")
    cli.add_argument("--json", action="store_true", help="with all parameters, for programs")
    add_plugin(cli)


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
