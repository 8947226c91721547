"""`fedray diff A B`: compare two runs."""

from __future__ import annotations

from pathlib import Path

import click

from fedray.base.errors import UserError
from fedray.command import PATH, Command
from fedray.results.difference import config_changes, gaps, input_changes
from fedray.storage.run_folder import RunFolder


@click.command(cls=Command)
@click.argument("first", type=PATH, metavar="A")
@click.argument("second", type=PATH, metavar="B")
def command(first: Path, second: Path) -> None:
    """Show how two runs differ: keys, inputs, environments, and the first number.

    A and B are folders of runs.
    """
    for folder in (first, second):
        if not RunFolder(folder).has_run:
            raise UserError(f"{folder} holds no run.json; pass the folders of two runs")
    then, now = RunFolder(first).read(), RunFolder(second).read()
    differences = gaps(then, now)
    parts = {
        "experiment": config_changes(then.info.config, now.info.config),
        "inputs": input_changes(then.info, now.info),
        "environment": then.info.environment.changes(now.info.environment),
        "numbers": [f"the first of {len(differences)} is {one}" for one in differences[:1]],
    }
    for name, changes in parts.items():
        print("\n  ".join([f"{name}: {'' if changes else 'the same'}".rstrip(), *changes]))
