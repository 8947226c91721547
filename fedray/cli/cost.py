"""What a method keeps, trains and sends: `python -m fedray cost EXPERIMENT [key=value ...]`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click

from fedray.analyses.parameters import Component, Cost, costs
from fedray.command import Command, Name, json_flag, keys, plugins
from fedray.runtime.resolve import resolve
from fedray.shipped import names
from fedray.units import size_of

COLUMNS = ("parameters", "trained", "memory", "up", "down")
WIDE = 15


@click.command(cls=Command)
@click.argument("experiment", type=Name(lambda: names("experiments")))
@keys
@json_flag
@plugins
def command(experiment: str, keys: Sequence[str], as_json: bool, plugin: Sequence[str]) -> None:
    """Count what a method keeps, trains and sends.

    EXPERIMENT is a shipped name or a YAML file.
    """
    resolved = resolve(experiment, keys, plugin, trusted=False)
    found = costs(resolved)
    if as_json:
        print(json.dumps([each.tree() for each in found], indent=1))
        return
    data = resolved.data.source.name
    print(f"{resolved.algorithm.name} on {data}: numbers by component; up and down in a round")
    for each in found:
        print("\n".join(["", *_table(each)]))


def _table(cost: Cost) -> list[str]:
    """Return a side's components and their sum, in 80 columns."""
    rows = [f"{cost.side:<{WIDE + 4}}" + "".join(f"{name:>12}" for name in COLUMNS)]
    rows += [
        _row(name, part)
        for name, part in cost.components.items()
        if any(getattr(part, each) for each in COLUMNS)
    ]
    if len(cost.components) > 1:
        rows.append(_row("in all", cost.total))
    first = cost.total.first
    if first:
        rows.append(f"  before round 1: {first:,} numbers")
    for way, size in (("up", cost.up.bytes), ("down", cost.down.bytes)):
        if size:
            rows.append(f"  bytes {way}: {_kinds(size)}")
    return rows


def _row(name: str, part: Component) -> str:
    numbers = {each: f"{getattr(part, each):,}" for each in COLUMNS}
    numbers["memory"] = size_of(part.memory)
    return f"  {name:<{WIDE + 2}}" + "".join(
        f"{'-' if not getattr(part, each) else numbers[each]:>12}" for each in COLUMNS
    )


def _kinds(size: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {size_of(count)}" for kind, count in size.items())
