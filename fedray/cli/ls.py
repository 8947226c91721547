"""What can be chosen by name: `fedray ls [KIND] [--json]`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from fedray.cli.listing import LISTINGS, Entry, Shipped, listed
from fedray.command import CommandLine, add_plugin, run_command
from fedray.plugins import Plugin

PROG = "fedray ls"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray ls`."""
    cli = CommandLine(
        prog=prog,
        description="List what can be chosen by name; fedray show NAME says more of each.",
    )
    cli.add_argument(
        "kind",
        nargs="?",
        choices=LISTINGS,
        metavar="KIND",
        help=f"{', '.join(LISTINGS)}; default: how many there are of each",
    )
    cli.add_argument("--json", action="store_true", help="with all parameters, for programs")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), ls, argv)


def ls(args: argparse.Namespace) -> int:
    """Print one line for each entry; returns the exit code."""
    plugins = plugins_of(args.plugin)
    if args.json:
        kinds = [args.kind] if args.kind else LISTINGS
        found = {kind: [asdict(each) for each in listed(kind, plugins)] for kind in kinds}
        print(json.dumps(found[args.kind] if args.kind else found, indent=1, ensure_ascii=False))
        return 0
    rows = _entries(listed(args.kind, plugins)) if args.kind else _kinds(plugins)
    print("\n".join(in_columns(list(rows))))
    return 0


def plugins_of(given: Sequence[str]) -> tuple[Plugin, ...]:
    """Return the plug-ins of the flag, trusted; without any, nothing is imported to read them."""
    if not given:
        return ()
    from fedray.config import named_plugins

    return named_plugins(given)


def _entries(found: Iterable[Entry | Shipped]) -> Iterator[tuple[str, str]]:
    for each in found:
        paper = f"  ({each.paper})" if isinstance(each, Entry) and each.paper != "-" else ""
        yield each.name, f"{each.summary}{paper}"


def _kinds(plugins: Sequence[Plugin]) -> Iterator[tuple[str, str]]:
    """How many there are of each kind, with the first names."""
    for kind in LISTINGS:
        names = [each.name for each in listed(kind, plugins)]
        yield kind, f"{len(names):>3}  {', '.join(names[:20])}"


def in_columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Each row on one line; on a terminal no wider than it is."""
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    first = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        line = f"{name:<{first}}  {text}".rstrip()
        yield line if len(line) <= wide else f"{line[: wide - 3]}..."
