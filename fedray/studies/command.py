"""`fedray sweep NAME [key=value ...]` and `fedray table NAME [key=value ...]`: run a study."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fedray.command import CommandLine, add_plugin, as_path, run_command, whole_number
from fedray.config import parse_assignments
from fedray.studies.file import SCALES, Kind
from fedray.studies.flow import Request, carry_out
from fedray.studies.space import MOST_CONFIGURATIONS

DOES = {
    "sweep": "Run one experiment in many configurations.",
    "table": "Compare methods: each tuned with the same effort, several seeds, verdicts.",
}


def parser(kind: Kind, prog: str = "") -> CommandLine:
    """Return the command line of a kind of study."""
    cli = CommandLine(
        prog=prog or f"python -m fedray.{kind}",
        description=DOES[kind],
        epilog=f"fedray ls {kind}s lists those that can be found from here.",
    )
    cli.add_argument(
        "name", nargs="?", default="", metavar="NAME", help=f"a {kind} in tune/, or a YAML file"
    )
    cli.add_argument(
        "set",
        nargs="*",
        metavar="key=value",
        help="for every experiment: rounds=5; of the study: seed=0,1 tuning.configurations=4",
    )
    cli.add_argument("--scale", choices=SCALES, help="default: the first that the file has")
    cli.add_argument(
        "--resume", action="store_true", help=f"go on with this {kind}'s latest unfinished run"
    )
    cli.add_argument(
        "--out", type=as_path, metavar="DIR", help="the folder of this invocation's results"
    )
    cli.add_argument(
        "--plan", action="store_true", help="print what would be run, and what it costs, and end"
    )
    if kind == "sweep":
        cli.add_argument(
            "--num-samples",
            type=whole_number(1, MOST_CONFIGURATIONS),
            metavar="N",
            help="try so many configurations; of a grid, so many evenly spread ones",
        )
    else:
        cli.add_argument(
            "--from",
            dest="published",
            type=as_path,
            action="append",
            default=[],
            metavar="DIR",
            help="take finished runs from the table.json in this folder; may be repeated",
        )
    cli.add_argument("--no-track", action="store_true", help="do not log to MLflow")
    add_plugin(cli)
    cli.add_debug()
    return cli


def request_of(kind: Kind, args: argparse.Namespace) -> Request:
    """Return what a command line asks for."""
    return Request(
        kind=kind,
        name=args.name,
        pairs=parse_assignments(args.set),
        scale=args.scale,
        samples=getattr(args, "num_samples", None),
        plugins=args.plugin,
        published=getattr(args, "published", ()),
        out=args.out,
        resume=args.resume,
        track=not args.no_track,
        only_plan=args.plan,
    )


def main(kind: Kind, argv: Sequence[str] | None = None, prog: str = "") -> int:
    """Run the command; return the exit code."""
    return run_command(parser(kind, prog), lambda args: carry_out(request_of(kind, args))[1], argv)
