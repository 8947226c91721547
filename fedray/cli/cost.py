"""`fedray cost EXPERIMENT [key=value ...]`: count the numbers a method keeps, trains and sends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from fedray.command import Command, KnownName, json_flag, keys, plugins
from fedray.config import is_record
from fedray.results.analyses.parameters import Cost, PartCost, costs, recorded_costs
from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections
from fedray.run_config import check_config
from fedray.runtime.inputs import check_inputs
from fedray.runtime.resolve import resolve
from fedray.shipped import names
from fedray.storage.run import Run, data_name
from fedray.storage.run_folder import RunFolder
from fedray.units import size_of

COLUMNS = ("parameters", "trained", "memory", "up", "down")


@click.command(cls=Command)
@click.argument("experiment", type=KnownName(lambda: names("experiments")))
@keys
@json_flag
@plugins
def command(experiment: str, keys: Sequence[str], as_json: bool, plugin: Sequence[str]) -> None:
    """Count the parameters a method keeps and trains, and the numbers it sends.

    EXPERIMENT is a shipped name or a YAML file. Nothing is trained. Of a run with plug-ins,
    given by its config.yaml, the recorded numbers are shown without running the plug-ins.
    """
    check_config(Path(experiment))
    if run := _run_with_plugins(experiment) if not (keys or plugin) else None:
        sides, method, data = recorded_costs(run), run.info.algorithm, data_name(run.info.config)
    else:
        resolved = resolve(experiment, keys, plugin)
        check_inputs(resolved)
        sides = costs(resolved)
        method, data = resolved.algorithm.name, resolved.data.source.name
    if as_json:
        print(json.dumps([side.tree() for side in sides], indent=1))
        return
    print(f"{method} on {data}: numbers by component; up and down per round")
    print_sections([_section(side) for side in sides])


def _run_with_plugins(experiment: str) -> Run | None:
    """Return the run whose config.yaml is given, if it has plug-ins; else None."""
    folder = RunFolder(Path(experiment).parent)
    recorded = is_record(experiment) and folder.has_result
    run = folder.read() if recorded else None
    return run if run is not None and run.rounds and run.info.config.get("plugins") else None


def _section(cost: Cost) -> Section:
    """Return the table of one side (client or server): its components and their total."""
    components = dict(cost.components)
    if len(components) > 1:
        components["in all"] = cost.total
    rows = [
        [name, *(_number(part, column) for column in COLUMNS)]
        for name, part in components.items()
        if any(getattr(part, column) for column in COLUMNS)
    ]
    first = cost.total.first
    below = [f"before round 1: {first:,} numbers"] if first else []
    for direction, size in (("up", cost.up.bytes), ("down", cost.down.bytes)):
        if size:
            kinds = ", ".join(f"{kind} {size_of(count)}" for kind, count in size.items())
            below.append(f"bytes {direction}: {kinds}")
    return Section("", (), [cost.side, *COLUMNS], rows, below)


def _number(part: PartCost, column: str) -> str:
    count = getattr(part, column)
    return "-" if not count else size_of(count) if column == "memory" else f"{count:,}"
