"""Registered names and shipped files, for `fedray ls`, `show` and shell completion.

The names that fedray itself registers are read from listing.json, so that no listing has to import
PyTorch.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedray.base.shipped import FOLDERS, PACKAGE, files
from fedray.cli.entry import KINDS, Entry, Parameter
from fedray.plugins import Plugin, use
from fedray.registry import installed_points

TOGETHER: Mapping[str, tuple[str, ...]] = MappingProxyType({"models": ("groups", "architectures")})
"""Listings that combine several kinds, because `model.group` accepts both."""

KEYS = "keys"
"""The listing of an experiment's keys."""

LISTINGS = ("algorithms", *FOLDERS, KEYS, *TOGETHER, *list(KINDS)[1:])
"""The kinds that `fedray ls` accepts."""

FAMILIES = ("text_guided", "prototypes", "averaging", "personalised", "prompts", "distillation")
"""Packages of methods in the order of listings."""

LISTING_FILE = PACKAGE / "listing.json"
"""All names that fedray itself registers, generated from the code by `make docs`."""


@dataclass(frozen=True)
class Shipped:
    """An experiment, sweep or table that fedray ships as a file.

    Attributes:
        name: the argument of `fedray run`, `sweep` or `table`.
        summary: the first line of the file.
        file: the path of the file.
    """

    name: str
    summary: str
    file: str


def by_family(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Group methods by family, under the first line of the family's docstring; plug-ins last."""
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.file.split("/")[1] if entry.file else "", []).append(entry)
    order = [name for name in (*FAMILIES, "") if name in families]
    return {_heading(name): families[name] for name in order}


def _heading(family: str) -> str:
    if not family:
        return "Plug-ins"
    source = (PACKAGE / "algorithms" / family / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or family).split("\n")[0].rstrip(".")


def read_entries(plugins: Sequence[Plugin] = ()) -> dict[str, list[Entry]]:
    """Return the entries of all registries by `KINDS`, and the experiment's keys under `KEYS`.

    The code is imported only if there are plug-ins.

    Raises:
        UserError: if a plug-in cannot be imported, or registers a name that exists already.
    """
    if plugins or installed_points():
        return import_entries(plugins)
    listing = json.loads(LISTING_FILE.read_text(encoding="utf-8"))
    return {kind: [_entry(tree) for tree in trees] for kind, trees in listing.items()}


def import_entries(plugins: Sequence[Plugin] = ()) -> dict[str, list[Entry]]:
    """Return the same as `read_entries`, read from the code; this imports PyTorch.

    Raises:
        UserError: if a plug-in cannot be imported, or registers a name that exists already.
    """
    from fedray.cli.catalogue import entries, experiment_keys

    use(plugins, check=True)
    return {kind: entries(kind) for kind in KINDS} | {KEYS: experiment_keys()}


def _entry(tree: Mapping[str, Any]) -> Entry:
    parameters = tuple(Parameter(**parameter) for parameter in tree["parameters"])
    return Entry(**{**tree, "parameters": parameters, "gives": tuple(tree["gives"])})


def list_entries(listing: str, plugins: Sequence[Plugin] = ()) -> Sequence[Entry | Shipped]:
    """Return the entries of a listing, sorted by name; keys in the order of the experiment.

    Args:
        listing: one of `LISTINGS`.
        plugins: plug-ins of the user.
    """
    if listing in FOLDERS:
        return shipped_files(listing)
    entries = read_entries(plugins)
    rows = [entry for kind in TOGETHER.get(listing, (listing,)) for entry in entries[kind]]
    return rows if listing == KEYS else sorted(rows, key=lambda entry: entry.name)


def shipped_files(kind: str) -> list[Shipped]:
    """Return the shipped files of a kind (a key of `FOLDERS`)."""
    return [Shipped(name, _first_line(path), str(path)) for name, path in files(kind).items()]


def _first_line(path: Path) -> str:
    """Return the comment in the first line of a file; "" if that line is not a comment."""
    with path.open(encoding="utf-8") as lines:
        first = lines.readline().strip()
    return first.lstrip("# ").rstrip(".") if first.startswith("#") else ""
