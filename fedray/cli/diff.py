"""`fedray diff A B`: compare two runs, or a result with what fedray ships today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedray.base.errors import UserError, nearest
from fedray.base.shipped import names
from fedray.command import PATH, Command
from fedray.results.difference import config_changes, gaps, input_changes
from fedray.results.record import DATA, CellRecord, TableRecord
from fedray.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedray.studies.plan import StudyPlan


@click.command(cls=Command)
@click.argument("first", type=PATH, metavar="A")
@click.argument("second", type=PATH, metavar="B")
def command(first: Path, second: Path) -> None:
    """Show how two runs differ, or what has changed since a result was made.

    A and B are run folders: keys, inputs, environments, and the first number. Or B is the
    name of an experiment, and A a run's folder; or of a sweep or table, and A the folder
    of its results.
    """
    parts: Mapping[str, Sequence[str]]
    if (first / DATA).is_file():
        parts = {str(second): changes_of_study(first, str(second))}
    elif (first / "plan.json").is_file():
        parts = {str(second): changes_of_invocation(first, str(second))}
    elif not RunFolder(first).has_run:
        raise UserError(f"{first} holds no run.json and no plan.json; pass a run or a study")
    elif str(second) in names("experiments"):
        parts = {str(second): changes_of_experiment(first, str(second))}
    else:
        parts = changes_of_run(first, second)
    for name, changes in parts.items():
        print(f"{name}: {'' if changes else 'the same'}".rstrip())
        for change in changes:
            print(f"  {change}")


def changes_of_run(first: Path, second: Path) -> dict[str, Sequence[str]]:
    """Return how two runs differ, by the part of their records."""
    if not second.exists():
        near = nearest(str(second), names("experiments"))
        raise UserError(f"{second} is neither a folder nor a shipped experiment.{near}")
    if not RunFolder(second).has_run:
        raise UserError(f"{second} holds no run.json; pass a run's folder")
    then, now = RunFolder(first).read(), RunFolder(second).read()
    differences = gaps(then, now)
    numbers = [f"the first of {len(differences)} is {differences[0]}"] if differences else []
    return {
        "experiment": config_changes(then.info.config, now.info.config),
        "inputs": input_changes(then.info, now.info),
        "environment": then.info.environment.changes(now.info.environment),
        "numbers": numbers,
    }


def changes_of_study(folder: Path, name: str) -> list[str]:
    """Return what differs between a recorded table and that of today."""
    from fedray.studies.file import plan_study

    record = TableRecord.read(folder / DATA)
    now = plan_study(record.plan.kind, name, scale=record.plan.scale)
    changes = config_changes(record.plan.model_dump(mode="json"), now.model_dump(mode="json"))
    rows = changed_rows(record, now)
    return [*changes, *(f"row {row}: made of other settings or versions of code" for row in rows)]


def changes_of_invocation(folder: Path, name: str) -> list[str]:
    """Return what differs between a sweep, or a table without a page, and that of today."""
    from fedray.config import missing_roots_allowed
    from fedray.studies.file import plan_study
    from fedray.studies.study import Study

    then = Study.read(folder)
    now = plan_study(then.plan.kind, name, scale=then.plan.scale)
    changes = config_changes(then.plan.model_dump(mode="json"), now.model_dump(mode="json"))
    with missing_roots_allowed():
        today = replace(then, plan=now)
        missing = [today.name_of(run) for run in today.needed.values() if not today.end_of(run)]
    return [*changes, *(f"{run}: not run with these settings and versions" for run in missing)]


def changed_rows(record: TableRecord, plan: StudyPlan) -> list[str]:
    """Return the rows of a record whose runs a plan would not take from it.

    The name of a run is a hash of what determines its numbers: settings, content of files, and the
    `version` of each entry that it uses.
    """
    from fedray.config import missing_roots_allowed
    from fedray.studies.plan import name_of

    def is_same(cell: CellRecord) -> bool:
        if cell.place not in plan.places:
            return False
        seed = next(iter(cell.choices))  # other seeds have the same settings
        try:
            today = plan.experiment_of(cell.place, cell.choices[seed], "report", seed)
        except UserError:  # for example, its method lacks a key that the record's method has
            return False
        return cell.reported[seed].partition(".")[0] == name_of(today)

    with missing_roots_allowed():
        changed = [cell.row for cell in record.cells if cell.choices and not is_same(cell)]
    return list(dict.fromkeys(changed))


def changes_of_experiment(folder: Path, name: str) -> list[str]:
    """Return what differs between a run's settings and today's experiment, with its versions."""
    from fedray.config import (
        EXECUTION_KEYS,
        flatten,
        load_experiment,
        missing_roots_allowed,
        read_experiment,
    )

    with missing_roots_allowed():
        today = load_experiment(read_experiment(name)).record()
    then, now = (
        {key: value for key, value in flatten(tree).items() if key not in EXECUTION_KEYS}
        for tree in (RunFolder(folder).read_head().config, today)
    )
    return config_changes(then, now)
