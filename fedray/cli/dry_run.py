"""Resolution of a command's experiments without running them, for `fedray papers` and tests."""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

import click

from fedray.base.errors import UserError, shown
from fedray.cli.main import find_command
from fedray.command import wrong_words
from fedray.config import Experiment
from fedray.studies.plan import StudyPlan

MODULES = {"fedray.run": "run", "fedray.sweep": "sweep", "fedray.table": "table"}
"""Modules that can be called with `python -m`, and their subcommands."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*=")


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
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{shown(command)} cannot be read ({error})") from None
    while words and _VARIABLE.match(words[0]):
        words.pop(0)
    if words[:2] == ["python", "-m"]:
        words = words[2:]
    if words[:1] == ["fedray"] and len(words) > 1:
        return words[1], words[2:]
    if words and words[0] in MODULES:
        return MODULES[words[0]], words[1:]
    raise UserError(f"{shown(command)} is no command of fedray; write fedray run ..., fedray sweep")


def check_command(command: str) -> list[PlannedRun]:
    """Parse a command and resolve every experiment that it would run, without running any.

    Returns:
        The runs; empty for a command that reads results.

    Raises:
        UserError: if the command would raise it.
        MissingRoot: if the only problem is that a data set is missing on this machine.
    """
    word, params = _parameters(command)
    if word in ("sweep", "table"):
        return _runs_of(plan_of_command(command))
    if word == "run" and params["resume"] is not None:
        return []
    if word in ("run", "cost"):
        return _plan_run(params)
    return []


def _parameters(command: str) -> tuple[str, dict[str, Any]]:
    """Return a command's word, and its arguments by name."""
    word, args = split_command(command)
    try:
        return word, find_command(word).command.make_context(f"fedray {word}", args).params
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
    request = request_of("sweep" if word == "sweep" else "table", **params)
    if not request.name:
        raise UserError(f"name a {word}")
    return plan_of(request)


def _plan_run(params: dict[str, Any]) -> list[PlannedRun]:
    from fedray.runtime.resolve import resolve

    if params["experiment"] is None or "=" in params["experiment"]:
        raise UserError("name an experiment, for example fedtsp_digits")
    return [PlannedRun("", resolve(params["experiment"], params["keys"], params["plugin"]))]


def _runs_of(plan: StudyPlan) -> list[PlannedRun]:
    from fedray.results.labels import config_label
    from fedray.studies.cell import check_cells

    check_cells(plan)
    return [
        PlannedRun(f"{place} {config_label(config)}", run.experiment)
        for place in plan.places
        for config in plan.configurations(place.row)
        for run in [plan.run(place, config, "tuning", plan.report.seeds[0])]
    ]
