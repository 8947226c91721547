"""`fedray cost EXPERIMENT [key=value ...]`: count the numbers a method keeps, trains and sends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from fedray.base.shipped import names
from fedray.base.units import size_of
from fedray.command import Command, KnownName, json_flag, keys, plugins
from fedray.config import is_record
from fedray.core import Algorithm, algorithms
from fedray.results.analyses.parameters import Cost, costs, recorded_costs
from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections
from fedray.runtime.inputs import check_inputs
from fedray.runtime.resolve import resolve
from fedray.storage.run import Run, Traffic, data_name
from fedray.storage.run_folder import RunFolder

COLUMNS = ("parameters", "trained", "memory", "up", "down")


@click.command(cls=Command)
@click.argument("experiment", type=KnownName(lambda: names("experiments")))
@keys
@json_flag
@plugins
def command(experiment: str, keys: Sequence[str], as_json: bool, plugin: Sequence[str]) -> None:
    """Count what a method keeps, trains and sends, and say what readers of it learn.

    EXPERIMENT is a shipped name or a YAML file. One round with few images is counted; sizes that
    depend on training, such as FedKD's ranks, differ in a run. Of a run with plug-ins, given by
    its run.json, the recorded numbers are shown without running the plug-ins.
    """
    if run := _run_with_plugins(experiment) if not (keys or plugin) else None:
        sides, method, data = recorded_costs(run), run.info.algorithm, data_name(run.info.config)
        learned: list[str] = []
    else:
        resolved = resolve(experiment, keys, plugin)
        check_inputs(resolved)
        sides = costs(resolved)
        method, data = resolved.algorithm.name, resolved.data.source.name
        learned = _learned(algorithms.get(method))
    if as_json:
        print(json.dumps([side.tree() for side in sides], indent=1))
        return
    print(f"{method} on {data}: numbers that are kept and trained, and sent per round")
    print_sections([_section(sides, learned)])


def _run_with_plugins(experiment: str) -> Run | None:
    """Return the run whose run.json is given, if it has plug-ins; else None."""
    folder = RunFolder(Path(experiment).parent)
    recorded = is_record(experiment) and folder.has_run
    run = folder.read() if recorded else None
    return run if run is not None and run.rounds and run.info.config.get("plugins") else None


def _learned(method: type[Algorithm]) -> list[str]:
    """Return what readers of the traffic learn about clients, as the payloads declare it."""
    readers = {"the server": method.uploads, "other clients": method.downloads}
    phrases = {
        reader: "; ".join(dict.fromkeys(filter(None, (each.reveals() for each in payloads))))
        for reader, payloads in readers.items()
    }
    return [f"{reader} and eavesdroppers learn: {text}" for reader, text in phrases.items() if text]


def _section(costs: Sequence[Cost], learned: Sequence[str]) -> Section:
    """Return the table of clients and server, with kinds of payload, and what readers learn."""
    rows = [[cost.side, *(_number(cost, column) for column in COLUMNS)] for cost in costs]
    below = []
    for cost in costs:
        if cost.first:
            below.append(f"{cost.side}, before round 1: {cost.first:,} numbers")
        for way, traffic in (("up", cost.up), ("down", cost.down)):
            kinds = ", ".join(
                f"{kind} {round(count):,} ({size_of(traffic.bytes[kind])})"
                for kind, count in traffic.params.items()
            )
            below += [f"{cost.side}, {way}: {kinds}"] if kinds else []
    return Section("", (), ["", *COLUMNS], rows, (), [*below, *learned])


def _number(cost: Cost, column: str) -> str:
    value = getattr(cost, column)
    count = round(sum(value.params.values())) if isinstance(value, Traffic) else value
    return "-" if not count else size_of(count) if column == "memory" else f"{count:,}"
