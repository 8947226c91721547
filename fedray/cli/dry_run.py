"""What a command of this package would do, without doing it: its words, its experiments."""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

from fedray.cli.main import word_of
from fedray.config import Experiment
from fedray.errors import UserError, shown

MODULES = {"fedray.run": "run", "fedray.sweep": "sweep", "fedray.table": "table"}
"""The words that have a module of their own."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*=")


class Asked(NamedTuple):
    """An experiment that a command would run.

    Attributes:
        label: a study's configuration in few words; "" for a single run.
        experiment: resolved.
    """

    label: str
    experiment: Experiment


def words_of(command: str) -> tuple[str, list[str]]:
    """Return the word of a command, and what stands behind it; variables before it are left out.

    Raises:
        UserError: if it is no command of this package.
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


def check_command(command: str) -> list[Asked]:
    """Parse a command's words and resolve every experiment that it would run; run nothing.

    Returns:
        The experiments; none for a command that reads results, which are not there.

    Raises:
        UserError: as the command itself would say it.
        MissingRoot: if all that is wrong is that data is not here.
    """
    word, given = words_of(command)
    params = word_of(word).command.make_context(f"fedray {word}", given).params
    if word in ("sweep", "table"):
        return _asked_by_study(word, params)
    if word == "run" and params["resume"] is not None:
        return []
    if word in ("run", "cost"):
        return _asked_by_run(params)
    return []


def _asked_by_run(params: dict[str, Any]) -> list[Asked]:
    from fedray.runtime.resolve import resolve

    if params["experiment"] is None or "=" in params["experiment"]:
        raise UserError("name an experiment, for example fedtsp_digits")
    return [Asked("", resolve(params["experiment"], params["keys"], params["plugin"]))]


def _asked_by_study(kind: Any, params: dict[str, Any]) -> list[Asked]:
    from fedray.cli.study import request_of
    from fedray.compare.labels import config_label
    from fedray.studies.cell import Cell, check_cells
    from fedray.studies.flow import plan_of

    request = request_of(kind, **params)
    if not request.name:
        raise UserError(f"name a {kind}")
    plan = plan_of(request)
    cells = [Cell(plan, place) for place in plan.places]
    check_cells(cells)
    return [
        Asked(f"{cell.place} {config_label(run.config)}", run.experiment)
        for cell in cells
        for config in cell.first
        for run in [cell.run_spec(config, "tuning", plan.tuning_seeds[0])]
    ]
