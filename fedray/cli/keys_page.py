"""docs/keys.md: every key of an experiment, with unit, bounds and default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from pydantic import BaseModel

from fedray.cli.catalogue import parameters
from fedray.cli.listing import Parameter
from fedray.config import COMPONENTS, EXECUTION_KEYS, Component, Experiment
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
    """A table for each section."""
    parts = [INTRODUCTION]
    for prefix, section in _sections():
        title = f"{prefix}.*" if prefix else "The experiment"
        parts += [f"## {title}", ""]
        if prefix:
            parts += [f"{summary_of(section)}.", ""]
        parts += ["| key | default | type | meaning | numbers |", "|---|---|---|---|---|"]
        parts += [_row(f"{prefix}.{each.name}".lstrip("."), each) for each in _keys(section)]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """The experiment and each of its sections, with what its keys begin with."""
    yield "", Experiment
    for name, field in Experiment.model_fields.items():
        if _is_section(field.annotation):
            yield name, field.annotation


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Component


def _keys(section: type[BaseModel]) -> list[Parameter]:
    inner = {name for name, field in section.model_fields.items() if _is_section(field.annotation)}
    return [each for each in parameters(section) if each.name not in inner]


def _row(key: str, found: Parameter) -> str:
    kind = COMPONENTS.get(key)
    default, what = found.default, f"`{found.type}` {found.bounds}".strip()
    if kind is not None:
        default = getattr(_default_of(key), "name", "")
        what = f"a {kind}".replace("a a", "an a").replace("a o", "an o")
    numbers = "-" if key in (*EXECUTION_KEYS, "name") else ""
    cells = (f"`{key}`", f"`{default}`", what, found.text, numbers)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default_of(key: str) -> object:
    section: type[BaseModel] = Experiment
    *above, last = key.split(".")
    for name in above:
        section = section.model_fields[name].annotation  # type: ignore[assignment]
    return section.model_fields[last].default
