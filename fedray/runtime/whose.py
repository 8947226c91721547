"""Whose a copy at a URI is: what a folder holds is compared with it, and another's is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedray.config import load_experiment, parse_yaml
from fedray.errors import UserError
from fedray.masking import mask
from fedray.runtime.remote import Read, file_system, reader, reading, uri_of

_FACTS = {
    "result.json": ("identity",),
    "sweep.json": ("sweep", "began"),
    "plan.json": ("table", "began"),
}
"""The files that say whose a folder is, and by which of their entries."""
CONFIG = "config.yaml"
BEGUN = (*_FACTS, CONFIG)
"""A folder with one of these holds a run, a sweep or a table; they are fetched last."""


def is_begun(folder: Path) -> bool:
    """Whether a folder holds a run, a sweep or a table."""
    return any((folder / name).is_file() for name in BEGUN)


def check_free(folder: Path, go_on: str = "--resume") -> None:
    """Refuse a folder for something new whose copy at $FEDRAY_RESULTS holds something.

    Args:
        folder: what is going to be copied.
        go_on: what goes on with what is there.

    Raises:
        UserError: with the URI, or when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None:
        return
    with reading(uri):
        _refuse_anything(uri, reader(*file_system(uri)), go_on)


def check_same(folder: Path) -> None:
    """Refuse to go on in a folder whose copy at $FEDRAY_RESULTS is of something else.

    Raises:
        UserError: with the URI, or when it cannot be read.
    """
    uri = uri_of(folder)
    if uri is None:
        return
    with reading(uri):
        refuse_anothers(folder, uri, reader(*file_system(uri)))


def _refuse_anything(uri: str, there: Read, go_on: str = "--resume") -> None:
    """Refuse a URI at which something was begun.

    Raises:
        UserError: with what to do.
    """
    found = next((name for name in BEGUN if there(name) is not None), None)
    if found is not None:
        what = {"sweep.json": "a sweep", "plan.json": "a table"}.get(found, "a run")
        raise UserError(
            mask(
                f"FEDRAY_RESULTS: {uri} already holds {what}; go on with {go_on}, or name a folder "
                "that is called otherwise"
            )
        )


def refuse_anothers(folder: Path, uri: str, there: Read) -> None:
    """Refuse a URI at which something else was begun than in a folder.

    Raises:
        UserError: with what to do.
    """
    if not is_begun(folder):
        _refuse_anything(uri, there)
    elif _is_anothers(_local(folder), there):
        raise UserError(
            mask(
                f"FEDRAY_RESULTS: {uri} holds another experiment than {folder}, which would "
                "replace it; give the folder another name, or FEDRAY_RESULTS another URI"
            )
        )


def _local(folder: Path) -> Read:
    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None

    return read


def _is_anothers(here: Read, there: Read) -> bool:
    """Whether what is there is of another invocation than what is here."""
    for name, keys in _FACTS.items():
        ours, theirs = here(name), there(name)
        if ours is not None and theirs is not None:
            return _facts(ours, keys) != _facts(theirs, keys)
    if all(there(name) is None for name in BEGUN):
        return False
    ours, theirs = here(CONFIG), there(CONFIG)
    if ours is None or theirs is None:
        return True
    return ours != theirs and _identity(ours) != _identity(theirs)


def _facts(content: bytes, keys: tuple[str, ...]) -> list[Any]:
    """What a file says of whose it is; nothing that equals another's where it is damaged."""
    try:
        tree = json.loads(content)
        return [tree[key] for key in keys]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [object()]


def _identity(config: bytes) -> object:
    """Of the experiment in a config.yaml; of one that cannot be read none that another has."""
    try:
        return load_experiment(parse_yaml(config.decode(), CONFIG)).identity()
    except (UserError, UnicodeDecodeError, TypeError, AttributeError):
        return object()
