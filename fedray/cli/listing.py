"""What can be chosen by name, and what is shipped as a file: for `ls`, `show` and completion.

Listing what fedray itself registers reads one file and imports nothing heavy.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedray.plugins import Plugin, use
from fedray.registry import installed_points
from fedray.shipped import FOLDERS, PACKAGE, files

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "algorithms": "algorithm",
        "optimizers": "optimizer",
        "schedules": "learning rate schedule",
        "architectures": "architecture",
        "groups": "model group",
        "clips": "CLIP",
        "sources": "data source",
        "partitions": "partition",
        "evolutions": "data evolution",
        "augmentations": "augmentation",
        "encoders": "text encoder",
        "styles": "text style",
        "metrics": "metric",
    }
)
"""What the listings are called, and the kind of registry behind each."""

TOGETHER: Mapping[str, tuple[str, ...]] = MappingProxyType({"models": ("groups", "architectures")})
"""Listings of several kinds: `model.group` takes both."""

KEYS = "keys"
"""The listing of an experiment's keys."""

LISTINGS = ("algorithms", *FOLDERS, KEYS, *TOGETHER, *list(KINDS)[1:])
"""Everything that `fedray ls` lists."""


FAMILIES = ("text_guided", "prototypes", "averaging", "personalised", "prompts", "distillation")
"""Packages of methods in the order of listings."""

WRITTEN = PACKAGE / "listing.json"
"""What fedray itself registers, as `make docs` wrote it."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an entry.

    Attributes:
        name: as the experiment spells it.
        type: its type in Python.
        default: as YAML would have it; "" where it must be given.
        bounds: "> 0" and the like; "" without.
        text: what its docstring says.
    """

    name: str
    type: str
    default: str
    bounds: str
    text: str


@dataclass(frozen=True)
class Entry:
    """One thing that can be chosen by name.

    Attributes:
        name: what the experiment calls it.
        title: what its paper calls it, or its name.
        summary: one line.
        paper: authors, venue, arXiv number; "-" where there is none.
        travels: what a method sends; "" for anything else.
        file: the source file below the package; "" where it is elsewhere.
        parameters: its typed parameters.
        gives: of a metric, the numbers that it may give and what they mean.
        stacked: of a method, "yes", or why its clients cannot be stacked; "" for anything else.
    """

    name: str
    title: str
    summary: str
    paper: str
    travels: str
    file: str
    parameters: tuple[Parameter, ...]
    gives: tuple[str, ...] = ()
    stacked: str = ""


@dataclass(frozen=True)
class Shipped:
    """An experiment, sweep or table.

    Attributes:
        name: what `run`, `sweep` or `table` is given.
        summary: the first line of its file.
        file: its path.
    """

    name: str
    summary: str
    file: str


def by_family(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return methods by the first sentence of their package's docstring, and plug-ins' last."""
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


def registered(plugins: Sequence[Plugin] = ()) -> dict[str, list[Entry]]:
    """Return the entries of every registry, by the keys of `KINDS`, and the experiment's keys.

    Raises:
        UserError: if a plug-in does not import or takes a name that is taken.
    """
    if plugins or installed_points():
        return imported(plugins)
    found = json.loads(WRITTEN.read_text(encoding="utf-8"))
    return {kind: [_entry(tree) for tree in trees] for kind, trees in found.items()}


def imported(plugins: Sequence[Plugin] = ()) -> dict[str, list[Entry]]:
    """Return the entries of every registry as their code has them; this imports PyTorch.

    Raises:
        UserError: if a plug-in does not import or takes a name that is taken.
    """
    from fedray.cli.catalogue import entries, keys

    use(plugins, check=True)
    return {kind: entries(kind) for kind in KINDS} | {KEYS: keys()}


def _entry(tree: Mapping[str, Any]) -> Entry:
    parameters = tuple(Parameter(**each) for each in tree["parameters"])
    return Entry(**{**tree, "parameters": parameters, "gives": tuple(tree["gives"])})


def listed(listing: str, plugins: Sequence[Plugin] = ()) -> Sequence[Entry | Shipped]:
    """Return what a listing holds, sorted by name; keys in the order of the experiment.

    Args:
        listing: one of `LISTINGS`.
        plugins: of the user.
    """
    if listing in FOLDERS:
        return shipped(listing)
    entries = registered(plugins)
    found = [entry for kind in TOGETHER.get(listing, (listing,)) for entry in entries[kind]]
    return found if listing == KEYS else sorted(found, key=lambda entry: entry.name)


def shipped(kind: str) -> list[Shipped]:
    """Return the files of a kind, a key of `FOLDERS`."""
    return [Shipped(name, _first_line(path), str(path)) for name, path in files(kind).items()]


def _first_line(path: Path) -> str:
    """Return what a file's first line says of it; "" if that is no comment."""
    with path.open(encoding="utf-8") as lines:
        first = lines.readline().strip()
    return first.lstrip("# ").rstrip(".") if first.startswith("#") else ""
