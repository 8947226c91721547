"""docs/keys.md: every key of an experiment, with unit, bounds and default."""

from __future__ import annotations

from itertools import groupby

from fedray.cli.catalogue import keys
from fedray.cli.listing import Entry
from fedray.config import COMPONENTS, EXECUTION_KEYS, Experiment
from fedray.registry import summary_of

INTRODUCTION = """\
# Keys of an experiment

Every key with its type, bounds and default; written by `make docs` from
`fedray/config/experiment.py`. In a YAML file the dots are levels, on the command line they are
dots: `data.partition.alpha=0.1`. What is chosen by name has parameters of its own, below the key
(`optimizer.momentum`): [reference.md](reference.md) lists the names and their parameters,
[methods](methods/index.md) those of every method. An unknown key is refused with the nearest one.

A `-` in the last column: the key changes no number, only where and how fast numbers are made.
"""


def keys_page() -> str:
    """A table for each section, the keys that are in none first."""
    parts = [INTRODUCTION]
    found = sorted(keys(), key=lambda entry: "." in entry.name)  # stable: else in their order
    for section, entries in groupby(found, lambda entry: entry.name.rpartition(".")[0]):
        parts += [f"## {section}.*" if section else "## The experiment", ""]
        if section:
            parts += [f"{summary_of(Experiment.model_fields[section].annotation)}.", ""]
        parts += ["| key | default | type | meaning | numbers |", "|---|---|---|---|---|"]
        parts += [*map(_row, entries), ""]
    return "\n".join(parts).rstrip() + "\n"


def _row(entry: Entry) -> str:
    (found,) = entry.parameters
    kind = COMPONENTS.get(entry.name)
    what = f"`{found.type}` {found.bounds}".strip() if kind is None else f"{_article(kind)} {kind}"
    numbers = "-" if entry.name in (*EXECUTION_KEYS, "name") else ""
    cells = (f"`{entry.name}`", f"`{found.default}`", what, f"{entry.summary}.", numbers)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
