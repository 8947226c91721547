"""The configuration of a run, read from its folder and compared with its result.

config.yaml says what a run was asked to do, and result.json what it did. A config.yaml that an
editor, a full disk or a stranger has changed would give other models, tests and tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.config import EXECUTION_KEYS, YOUNGER, Tree, content_of, flatten, listed, read_mapping
from fedray.errors import UserError, shown
from fedray.storage.run import RunInfo
from fedray.storage.run_folder import RunFolder


def read_config(folder: Path) -> Tree:
    """Return the content of config.yaml in the folder of a run, with or without a result.

    Raises:
        UserError: if the file is missing or damaged, or its values are not those of result.json.
    """
    files = RunFolder(folder)
    tree = read_mapping(files.config)
    if files.has_result:
        head = files.read_head()
        given, recorded = _values(tree), _values(head.config)
        for key in sorted({*given, *recorded}):
            if given.get(key) != recorded.get(key) and not _is_moved(given.get(key), head, key):
                raise UserError(
                    f"{files.config} is not the configuration of this run: {key} is "
                    f"{shown(given.get(key))} there and {shown(recorded.get(key))} in "
                    f"{files.result.name}; restore {files.config.name} from a copy"
                )
    return tree


def check_config(file: Path) -> None:
    """Refuse a config.yaml beside a result.json that does not fit; other files may be anything.

    Raises:
        UserError: as `read_config`.
    """
    files = RunFolder(file.parent)
    if file.name == files.config.name and files.has_result:
        read_config(file.parent)


def _is_moved(path: Any, head: RunInfo, key: str) -> bool:
    """Return True if a key names another path of the file that the run has read."""
    content = head.files_sha256.get(key)
    return bool(content) and isinstance(path, str) and content_of(path) == content


def _values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that both files record, by dotted key; a plug-in by its hash.

    Resuming a run may change where it executes; values that are left out are added.
    """
    plugins = tree.get("plugins")
    if not isinstance(plugins, Mapping):
        named = [plugin for plugin in listed(tree) if isinstance(plugin, Mapping)]
        plugins = {plugin.get("module"): plugin.get("sha256") for plugin in named}
    values = {**flatten(YOUNGER), **flatten({**tree, "plugins": plugins})}
    return {
        key: value
        for key, value in values.items()
        if key not in EXECUTION_KEYS and key.split(".")[0] != "versions" and value != {}
    }
