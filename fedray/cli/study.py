"""`fedray sweep` and `fedray table`: run a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fedray.cli.start import load_libraries
from fedray.command import PATH, Command, F, completed, keys, plugins
from fedray.studies.file import SCALES, Kind, read_study

if TYPE_CHECKING:
    from fedray.studies.flow import Request


def _common(function: F) -> F:
    """Add the arguments of both commands."""
    for add in (
        click.option("--plan", is_flag=True, help="Print the runs without starting them."),
        click.option("--out", type=PATH, help="Folder for the results; default: NAME/SCALE."),
        plugins,
        click.option("--no-track", is_flag=True, help="Do not log to MLflow."),
        click.option(
            "--scale",
            type=click.Choice(SCALES),
            help="Size of the study; default: the first in its file.",
        ),
        keys,
    ):
        function = add(function)
    return function


@click.command(cls=Command, epilog="fedray ls sweeps lists the available sweeps.")
@click.argument("name", shell_complete=completed("sweeps"))
@_common
def sweep(**words: Any) -> int:
    """Run one experiment in many configurations.

    NAME is a sweep in tune/ or a YAML file. KEY=VALUE overrides a setting of all runs
    (rounds=5) or of the sweep (seed=0,1 tuning.configurations=8). The same command again
    goes on with what is not finished.
    """
    return _run("sweep", words)


@click.command(cls=Command, epilog="fedray ls tables lists the available tables.")
@click.argument("name", shell_complete=completed("tables"))
@_common
@click.option(
    "--from",
    "published",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="Reuse the finished runs in this folder's table.json; repeatable.",
)
@click.option("--rows", metavar="NAMES", help="Run only these rows, separated by commas.")
def table(**words: Any) -> int:
    """Compare methods, each tuned with the same effort, and test claims over seeds.

    NAME is a table in tune/tables/ or a YAML file. KEY=VALUE overrides a setting of all runs
    (rounds=5) or of the table (report.seeds=[0,1] tuning.configurations=4). The same command
    again goes on with what is not finished.
    """
    return _run("table", words)


def _run(kind: Kind, words: dict[str, Any]) -> int:
    """Run the study of a command line, or go on with it; return the exit code."""
    read_study(kind, words["name"])  # a wrong name is refused before Ray starts
    load_libraries(f"the {kind} {words['name']}", on_ray=not words["plan"], trials=True)
    from fedray.studies.flow import carry_out

    return carry_out(request_of(kind, **words)).code


def request_of(kind: Kind, **words: Any) -> Request:
    """Return the request of a command line."""
    from fedray.config import parse_assignments
    from fedray.studies.flow import Request

    rows = words.get("rows") or ""
    return Request(
        kind=kind,
        name=words["name"],
        pairs=parse_assignments(words["keys"]),
        scale=words["scale"],
        rows=[row.strip() for row in rows.split(",") if row],
        plugins=words["plugin"],
        published=words.get("published", ()),
        out=words["out"],
        track=not words["no_track"],
        only_plan=words["plan"],
    )
