"""`fedray check METHOD`: test that a method computes the same numbers however it is executed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from textwrap import fill, indent
from typing import TYPE_CHECKING

import click

from fedray.base.activity import say_next
from fedray.base.errors import UserError
from fedray.command import RUN_ERROR, Command, plugins

if TYPE_CHECKING:
    from fedray.laws.conformance import Law


@click.command(cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="METHOD|KEY=VALUE...")
@plugins
def command(words: Sequence[str], plugin: Sequence[str]) -> int:
    """Check that a method computes the same numbers however it is executed.

    Runs each METHOD on a few images of digits: twice, with clients in another order, resumed, on
    Ray, and with keys that change nothing. Pass names of methods, or all; keys apply to all
    methods. Exit code 1: a check failed.
    """
    say_next("importing PyTorch")
    from fedray.config import parse_assignments
    from fedray.core import algorithms
    from fedray.laws.conformance import Workers, small_experiment, verdicts

    methods = [word for word in words if "=" not in word]
    sets = list(parse_assignments(word for word in words if "=" in word))
    if not methods:
        raise UserError("name a method to check, for example fedavg, or all")
    methods = list(algorithms.names()) if methods == ["all"] else methods
    experiments = [small_experiment(method, sets, plugin) for method in methods]
    with closing(Workers()) as workers:
        hold = [
            print_verdicts(method, verdicts(experiment, workers))
            for method, experiment in zip(methods, experiments, strict=True)
        ]
    return 0 if all(hold) else RUN_ERROR


def print_verdicts(method: str, found: Iterable[tuple[Law, str]]) -> bool:
    """Print the verdicts on a method when they are reached, and the time; True if all laws hold."""
    started, holds = time.monotonic(), True
    print(method, flush=True)
    for law, difference in found:
        result = "BROKEN" if difference else "holds"
        print(f"  {result:<7} {law.name:<12} {law.description}", flush=True)
        if difference:
            print(indent(fill(difference, 70), " " * 10), flush=True)
        holds &= not difference
    print(f"  {time.monotonic() - started:.1f} s", flush=True)
    return holds
