"""`fedray analyse NAME RUN [RUN ...]`: one analysis of finished runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from fedray.analyses.harness import MODULES, Request, carry_out, default_folder, find
from fedray.command import CommandLine, add_trust, as_path, run_command
from fedray.records import Select
from fedray.render.terminal import print_sections

PROG = "fedray analyse"


def parser(prog: str = PROG, name: str | None = None) -> CommandLine:
    """Return the command line, with the options of one analysis if it is named."""
    cli = CommandLine(
        prog=prog,
        description="Analyse finished runs." if name is None else find(name).summary,
        epilog="fedray analyse NAME --help lists the options of one analysis.",
    )
    cli.add_argument("name", metavar="NAME", help=", ".join(MODULES))
    cli.add_argument(
        "folders", nargs="+", type=as_path, metavar="RUN", help="runs, or folders of runs"
    )
    cli.add_argument(
        "--out", type=as_path, metavar="DIR", help="default: RUN/report, or ./report for several"
    )
    cli.add_argument(
        "--select",
        choices=get_args(Select),
        help="choose best rounds on these images; default: as each run's report.select says",
    )
    for flag, how in ({} if name is None else find(name).options).items():
        cli.add_argument(flag, **how)
    add_trust(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    name = next((word for word in argv or () if word in MODULES), None)
    return run_command(parser(prog, name), analyse, argv)


def analyse(args: argparse.Namespace) -> int:
    """Run the analysis, print and write its page; returns the exit code."""
    chosen = find(args.name)
    out = args.out or chosen.out or default_folder(args.folders)
    request = Request(args.folders, out, args.select, vars(args))
    sections, files = carry_out(chosen, request)
    print_sections(sections)
    print("wrote " + "\n      ".join(map(str, files)))
    return 0
