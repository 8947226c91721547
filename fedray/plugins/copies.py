"""Copies of plug-ins in the folder of a run or study, as they were run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedray.plugins.plugin import Plugin
from fedray.storage.files import write_atomic

FOLDER = "plugins"


def write_copies(folder: Path, plugins: Iterable[Plugin]) -> None:
    """Write the source files of plug-ins that are sent to workers below `folder`."""
    for plugin in plugins:
        for file, text in plugin.files.items():
            copy = folder / FOLDER / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, text)
