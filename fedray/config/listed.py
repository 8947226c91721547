"""The key `plugins` of an experiment's file, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.config.typed import Tree
from fedray.errors import UserError, shown
from fedray.plugins import located

KEY = "plugins"


def listed(tree: Mapping[str, Any]) -> list[Any]:
    """The plug-ins that a tree names; one may stand without a list.

    Raises:
        UserError: when they are neither names nor plug-ins as a resolved experiment has them.
    """
    given = tree.get(KEY)
    given = [] if given is None else given
    given = list(given) if isinstance(given, list | tuple) else [given]
    for each in given:
        if not isinstance(each, str | Mapping):
            raise UserError(
                f"plugins has {shown(each)}, expected files or modules, for example [mine.py]"
            )
    return given


def with_located_plugins(tree: Tree, folder: Path) -> Tree:
    """An experiment's tree with the paths of plug-ins relative to its file's folder."""
    if KEY not in tree:
        return tree
    found = [located(each, folder) if isinstance(each, str) else each for each in listed(tree)]
    return {**tree, KEY: found}
