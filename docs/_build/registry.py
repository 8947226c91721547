"""Pages and listings generated from the registries and the interface of methods."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from itertools import groupby

from _build.templates import render
from fedray.cli.catalogue import entries, experiment_keys
from fedray.cli.entry import KINDS, Entry
from fedray.cli.listing import KEYS
from fedray.config import COMPONENTS, EXECUTION_KEYS, Experiment
from fedray.core import Algorithm, LocalTraining, algorithms
from fedray.registry import registry, summary_of

HEADINGS = {
    "clips": "CLIPs",
    "groups": "Model groups",
    "schedules": "Learning rate schedules",
    "styles": "Text styles",
}
HOOKED = (Algorithm, LocalTraining)
"""The classes that define what a method may override."""


def keys_page() -> str:
    """Return docs/keys.md, with a table for each section; keys outside sections come first."""
    ordered = sorted(experiment_keys(), key=lambda entry: "." in entry.name)  # a stable sort
    sections = []
    for section, members in groupby(ordered, lambda entry: entry.name.rpartition(".")[0]):
        field = Experiment.model_fields.get(section)
        sections.append(
            {
                "title": f"{section}.*" if section else "The experiment",
                "summary": "" if field is None else summary_of(field.annotation),
                "entries": [_key(entry) for entry in members],
            }
        )
    return render("keys", sections=sections)


def _key(entry: Entry) -> dict[str, str]:
    (value,) = entry.parameters
    kind = COMPONENTS.get(entry.name)
    article = "an" if kind is not None and kind[0] in "aeiou" else "a"
    return {
        "name": entry.name,
        "default": value.default,
        "kind": f"`{value.type}` {value.bounds}".strip() if kind is None else f"{article} {kind}",
        "summary": entry.summary,
        "numbers": "-" if entry.name in (*EXECUTION_KEYS, "name") else "",
    }


def reference() -> str:
    """Return docs/reference.md, with every entry of every registry and its parameters."""
    kinds = [
        {"title": HEADINGS.get(kind, kind.capitalize()), "entries": own_entries(kind)}
        for kind in KINDS
    ]
    return render("reference", kinds=kinds)


def own_entries(kind: str) -> list[Entry]:
    """Return the entries of a kind that fedray itself registers."""
    homes = registry(KINDS[kind])
    return [entry for entry in entries(kind) if homes.home(entry.name).startswith("fedray.")]


def listing() -> str:
    """Return fedray/listing.json, which `fedray ls` reads, with one entry per line."""
    kinds = []
    for kind, listed in {KEYS: experiment_keys(), **{kind: own_entries(kind) for kind in KINDS}}.items():
        lines = ",\n".join(json.dumps(asdict(entry), ensure_ascii=False) for entry in listed)
        kinds.append(f"{json.dumps(kind)}: [\n{lines}\n]")
    return "{" + ",\n".join(kinds) + "}\n"


def hooks_page() -> str:
    """Return docs/hooks.md, with the functions that methods may override, and which methods do."""
    owners = [
        {
            "name": owner.__name__,
            "summary": summary_of(owner),
            "hooks": [_hook(owner, name) for name in hooks_of(owner)],
        }
        for owner in HOOKED
    ]
    return render("hooks", owners=owners)


def _hook(owner: type[Algorithm], name: str) -> dict[str, object]:
    hook = getattr(owner, name)
    parameters = [name for name in inspect.signature(hook).parameters if name != "self"]
    definers, users = overriding(name)
    return {
        "name": name,
        "signature": f"({', '.join(parameters)})",
        "text": inspect.getdoc(hook),
        "definers": definers,
        "users": users,
    }


def hooks_of(owner: type[Algorithm]) -> list[str]:
    """Return the public methods that a class adds and subclasses may override, in order."""
    return [
        name
        for name, value in vars(owner).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and not getattr(value, "__final__", False)
        and not any(hasattr(base, name) for base in owner.__mro__[1:])
    ]


def overriding(hook: str) -> tuple[list[str], int]:
    """Return the classes that override a hook, and the number of methods that use an override.

    The classes are those of registered methods and their bases, sorted by name.
    """
    definers: set[str] = set()
    users = 0
    for entry in algorithms.entries():
        bases = [cls for cls in entry.__mro__ if issubclass(cls, Algorithm) and hook in vars(cls)]
        names = {cls.__name__ for cls in bases if cls not in HOOKED}
        definers |= names
        users += bool(names)
    return sorted(definers, key=str.lower), users
