"""`fedray sweep NAME [KEY=VALUE]...` and `fedray table NAME [KEY=VALUE]...`: run a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedray import shipped
from fedray.command import PATH, Command, F, Name, keys, plugins
from fedray.studies.file import SCALES, Kind
from fedray.studies.flow import Request, carry_out
from fedray.studies.space import MOST_CONFIGURATIONS

published = click.option(
    "--from",
    "published",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="Take finished runs from the table.json in this folder; repeatable.",
)


def _common(kind: Kind, *, begins: bool = True) -> Callable[[F], F]:
    """Return what adds the words and flags that the commands share.

    Args:
        kind: of which studies names are completed.
        begins: whether the command runs one invocation, which can be planned and resumed.
    """
    name = Name(partial(shipped.names, f"{kind}s"))
    adds: list[Callable[[Any], Any]] = [
        click.argument("name", required=False, type=name, default=""),
        keys,
        click.option("--scale", type=click.Choice(SCALES), help="Default: the file's first."),
        click.option("--no-track", is_flag=True, help="Do not log to MLflow."),
        plugins,
    ]
    of_one = [
        click.option("--resume", is_flag=True, help="Go on with the latest unfinished invocation."),
        click.option("--out", type=PATH, help="The folder of this invocation's results."),
        click.option("--plan", is_flag=True, help="Print what would be run, and end."),
    ]
    adds += of_one if begins else []

    def add(function: F) -> F:
        for each in reversed(adds):
            function = each(function)
        return function

    return add


@click.command(cls=Command, epilog="fedray ls sweeps lists those that can be found from here.")
@_common("sweep")
@click.option(
    "--num-samples",
    "samples",
    type=click.IntRange(1, MOST_CONFIGURATIONS),
    help="Try so many configurations; of a grid, so many evenly spread ones.",
)
def sweep(**words: Any) -> int:
    """Run one experiment in many configurations.

    NAME is a sweep in tune/, or a YAML file. Keys are of every experiment (rounds=5) and of the
    study (seed=0,1 select=test).
    """
    return carry_out(request_of("sweep", **words))[1]


@click.command(cls=Command, epilog="fedray ls tables lists those that can be found from here.")
@_common("table")
@published
@click.option(
    "--register", is_flag=True, help="Write the plan and its hash down before the first run."
)
def table(**words: Any) -> int:
    """Compare methods: each tuned with the same effort, several seeds, verdicts.

    NAME is a table in tune/tables/, or a YAML file. Keys are of every experiment (rounds=5) and of
    the study (report.seeds=[0,1] tuning.configurations=4).
    """
    return carry_out(request_of("table", **words))[1]


@click.command(cls=Command, epilog="fedray ls tables lists those that can be found from here.")
@_common("table", begins=False)
@published
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Begin nothing that would take longer, in all.",
)
def decide(*, hours: float, **words: Any) -> int:
    """Add seeds to a table until its claims are decided, the cheapest one first.

    The table is tested with test=anytime, whose verdicts stay valid however often seeds are added.
    Runs that are finished are not run again, so that the command can be stopped and repeated.
    """
    from fedray.studies.decide import decide_claims

    return decide_claims(request_of("table", **words), hours)


def request_of(
    kind: Kind,
    *,
    name: str,
    keys: Sequence[str],
    no_track: bool,
    plugin: Sequence[str],
    plan: bool = False,
    published: Sequence[Path] = (),
    **words: Any,
) -> Request:
    """Return what a command line asks for."""
    from fedray.config import parse_assignments

    return Request(
        kind=kind,
        name=name,
        pairs=parse_assignments(keys),
        plugins=plugin,
        published=published,
        track=not no_track,
        only_plan=plan,
        **words,
    )
