"""Whether a method keeps the laws of the platform: `python -m fedray check METHOD`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from textwrap import fill, indent
from typing import TYPE_CHECKING

from fedray.command import RUN_ERROR, CommandLine, add_plugin, run_command
from fedray.errors import UserError
from fedray.waiting import say_next

if TYPE_CHECKING:
    from fedray.runtime.conformance import Verdict

PROG = "fedray check"


def parser(prog: str = PROG) -> CommandLine:
    """Return the command line of `fedray check`."""
    cli = CommandLine(
        prog=prog,
        description="Run a method on a few digits in several ways that must give the same "
        "numbers: again, clients in another order, resumed, on Ray, on a pretended accelerator.",
    )
    cli.add_argument(
        "words",
        nargs="+",
        metavar="METHOD or key=value",
        help="methods to check, or all, and keys to set for all of them",
    )
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), check, argv)


def check(args: argparse.Namespace) -> int:
    """Check every named method and print a line for each law; returns 1 if one is broken.

    Raises:
        UserError: when there is no such method or key.
    """
    say_next("importing PyTorch")
    from fedray.config import parse_assignments
    from fedray.core import algorithms
    from fedray.runtime.conformance import Conformance, small_experiment

    methods = [word for word in args.words if "=" not in word]
    sets = list(parse_assignments(word for word in args.words if "=" in word))
    if not methods:
        raise UserError("name a method to check, for example fedavg, or all")
    methods = list(algorithms.names()) if methods == ["all"] else methods
    experiments = [small_experiment(method, sets, args.plugin) for method in methods]
    with closing(Conformance()) as conformance:
        broken = [
            verdict
            for method, experiment in zip(methods, experiments, strict=True)
            for verdict in shown(method, conformance.check(experiment))
            if verdict.difference
        ]
    return RUN_ERROR if broken else 0


def shown(method: str, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Print a method's verdicts as they come, and how long they took."""
    started = time.monotonic()
    print(method, flush=True)
    for verdict in verdicts:
        result = "BROKEN" if verdict.difference else "holds"
        print(f"  {result:<7} {verdict.law:<12} {verdict.way}", flush=True)
        if verdict.difference:
            print(indent(fill(verdict.difference, 70), " " * 10), flush=True)
        yield verdict
    print(f"  {time.monotonic() - started:.1f} s", flush=True)
