"""Resolution of a command's experiments without running them, for `fedray papers` and tests."""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

import click

from fedray.base.errors import UserError, shown
from fedray.cli.main import Commands
from fedray.command import wrong_words
from fedray.config import Experiment
from fedray.results.labels import config_label
from fedray.studies.plan import StudyPlan

_COMMAND = re.compile(
    r"(?:[A-Z_][A-Z0-9_]*=\S* )*(?:(?:python -m )?fedray |python -m fedray\.)(.+)"
)


class PlannedRun(NamedTuple):
    """A run that a command would start.

    Attributes:
        label: the cell and configuration of a study; "" for a single run.
        experiment: the resolved experiment.
    """

    label: str
    experiment: Experiment


def split_command(command: str) -> tuple[str, list[str]]:
    """Return the subcommand and the arguments of a shell command; skip leading variables.

    Raises:
        UserError: if the command does not call fedray.
    """
    match = _COMMAND.fullmatch(command)
    if match is None:
        raise UserError(f"{shown(command)} is no command of fedray; write fedray run ...")
    word, *args = shlex.split(match[1])
    return word, args


def check_command(command: str) -> list[PlannedRun]:
    """Parse a command and resolve every experiment that it would run, without running any.

    Raises:
        UserError: if the command would raise it.
        MissingRoot: if the only problem is that a data set is missing on this machine.
    """
    from fedray.runtime.resolve import resolve
    from fedray.studies.cell import check_cells

    word, params = _parameters(command)
    if word in ("run", "cost") and params.get("resume") is None:
        if params["experiment"] is None or "=" in params["experiment"]:
            raise UserError("name an experiment, for example fedtsp_digits")
        return [PlannedRun("", resolve(params["experiment"], params["keys"], params["plugin"]))]
    if word not in ("sweep", "table"):
        return []
    plan = plan_of_command(command)
    check_cells(plan)
    return [
        PlannedRun(f"{place} {config_label(config)}", run.experiment)
        for place in plan.places
        for config in plan.configurations(place.row)
        for run in [plan.run(place, config, "tuning", plan.report.seeds[0])]
    ]


def _parameters(command: str) -> tuple[str, dict[str, Any]]:
    """Return a command's word, and its arguments by name."""
    word, args = split_command(command)
    try:
        return word, Commands().find(word).make_context(f"fedray {word}", args).params
    except click.UsageError as error:
        raise UserError(wrong_words(error)) from None


def plan_of_command(command: str) -> StudyPlan:
    """Return the plan of a command that runs a sweep or a table.

    Raises:
        UserError: if the command would raise it.
    """
    from fedray.cli.study import request_of
    from fedray.studies.flow import plan_of

    word, params = _parameters(command)
    return plan_of(request_of("sweep" if word == "sweep" else "table", **params))
