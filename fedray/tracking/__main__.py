"""Upload runs that MLflow could not take: `python -m fedray.tracking upload DIR [DIR ...]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedray.command import CommandLine, as_path, as_word, run_command
from fedray.files import results_home
from fedray.tracking.live import MlflowTracker
from fedray.tracking.store import resolve_uri, ui_command
from fedray.tracking.uploading import upload

PROG = "python -m fedray.tracking"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.tracking`."""
    cli = CommandLine(prog=prog, description="Runs in MLflow, after the fact.")
    commands = cli.add_subparsers(dest="command", required=True)
    up = commands.add_parser("upload", help="log what MLflow is missing of runs; repeat at will")
    up.add_argument(
        "folders", nargs="+", type=as_path, metavar="DIR", help="a run's or sweep's folder"
    )
    up.add_argument(
        "--uri", type=as_word, help="default: $MLFLOW_TRACKING_URI, or the database of the results"
    )
    up.add_argument(
        "--experiment", type=as_word, help="MLflow experiment of runs that MLflow does not know"
    )
    cli.add_debug()
    return cli


def replay_sweep(home: Path, tracker: MlflowTracker) -> None:
    """Tell a tracker all of a sweep; commands know each other, the library does not."""
    from fedray.sweep.runs import replay

    replay(home, tracker)


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    uri = args.uri or resolve_uri(results_home())
    for done in upload(args.folders, uri, args.experiment, replay_sweep):
        print(done)
    print(f"look at them: {ui_command(uri)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
