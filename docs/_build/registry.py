"""Pages generated from the registries and the interface of methods."""

from __future__ import annotations

from itertools import groupby

from _build.templates import render
from fedray.cli.catalogue import KINDS, Entry, entries, experiment_keys
from fedray.config import COMPONENTS, EXECUTION_KEYS, Experiment
from fedray.config.registry import registry, summary_of

HEADINGS = {
    "clips": "CLIPs",
    "groups": "Model groups",
    "schedules": "Learning rate schedules",
    "styles": "Text styles",
}


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
    """Return docs/reference.md of the site, with every entry of every registry and its parameters."""
    kinds = [
        {"title": HEADINGS.get(kind, kind.capitalize()), "entries": own_entries(kind)}
        for kind in KINDS
    ]
    return render("reference", kinds=kinds)


def own_entries(kind: str) -> list[Entry]:
    """Return the entries of a kind that fedray itself registers."""
    homes = registry(KINDS[kind])
    return [entry for entry in entries(kind) if homes.home(entry.name).startswith("fedray.")]
