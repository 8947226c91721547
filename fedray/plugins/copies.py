"""Copies of plug-ins in the folder of a run or study, as they were run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedray.errors import UserError
from fedray.plugins.plugin import Plugin
from fedray.plugins.reading import changed_file
from fedray.storage.files import write_atomic

FOLDER = "plugins"


def write_copies(folder: Path, plugins: Iterable[Plugin]) -> None:
    """Write the source files of plug-ins that are sent to workers below `folder`."""
    for plugin in plugins:
        for file, text in plugin.files.items():
            copy = folder / FOLDER / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, text)


def check_unchanged(folder: Path, plugins: Iterable[Plugin]) -> None:
    """Raise `UserError` if a file of a plug-in has changed since the run in `folder` started."""
    for plugin in plugins:
        changed = changed_file(plugin)
        if changed is not None:
            copy = folder / FOLDER / Path(changed).relative_to(plugin.folder)
            raise UserError(
                f"{changed} has changed since {folder} was started; resume with the old "
                f"version, --plugin {copy}, or start a new run with another --out"
            )
