"""`fedray diff A B`: compare two runs."""

from __future__ import annotations

from pathlib import Path

import click

from fedray.command import PATH, Command
from fedray.results.difference import config_changes, gaps, input_changes
from fedray.run_config import read_config
from fedray.storage.run_folder import RunFolder


@click.command(cls=Command)
@click.argument("first", type=PATH, metavar="A")
@click.argument("second", type=PATH, metavar="B")
def command(first: Path, second: Path) -> None:
    """Show how two runs differ: keys, inputs, environments, and the first number.

    A and B are run folders.
    """
    then, now = RunFolder(first).read(), RunFolder(second).read()
    for folder in (first, second):
        read_config(folder)
    differences = gaps(then, now)
    numbers = [f"the first of {len(differences)} is {differences[0]}"] if differences else []
    parts = {
        "experiment": config_changes(then.info.config, now.info.config),
        "inputs": input_changes(then.info, now.info),
        "environment": then.info.environment.changes(now.info.environment),
        "numbers": numbers,
    }
    for name, changes in parts.items():
        print(f"{name}: {'' if changes else 'the same'}".rstrip())
        for change in changes:
            print(f"  {change}")
