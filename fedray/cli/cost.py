"""`fedray cost EXPERIMENT [key=value ...]`: count the numbers a method keeps, trains and sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from fedray.base.units import size_of
from fedray.command import Command, completed, keys, plugins
from fedray.core import Algorithm, algorithms
from fedray.results.analyses.parameters import Cost, costs
from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections
from fedray.runtime.inputs import check_inputs
from fedray.runtime.resolve import resolve

COLUMNS = ("parameters", "trained", "memory", "up", "down")


@click.command(cls=Command)
@click.argument("experiment", shell_complete=completed("experiments"))
@keys
@plugins
def command(experiment: str, keys: Sequence[str], plugin: Sequence[str]) -> None:
    """Count what a method keeps, trains and sends, and say what readers of it learn.

    EXPERIMENT is a shipped name or a YAML file. One round with few images is counted; sizes that
    depend on training, such as FedKD's ranks, differ in a run.
    """
    resolved = resolve(experiment, keys, plugin)
    check_inputs(resolved)
    method, data = resolved.algorithm.name, resolved.data.source.name
    print(f"{method} on {data}: numbers that are kept and trained, and sent per round")
    sides = costs(resolved)
    rows, items = [], list[str]()
    for cost in sides:
        counts = [cost.parameters, cost.trained, size_of(cost.memory) if cost.memory else 0]
        counts += [round(sum(way.params.values())) for way in (cost.up, cost.down)]
        texts = [f"{count:,}" if isinstance(count, int) else count for count in counts]
        rows.append([cost.side, *("-" if text == "0" else text for text in texts)])
        items += _kinds(cost)
    items += _learned(algorithms.get(method))
    print_sections([Section("", (), ["", *COLUMNS], rows, (), items)])


def _kinds(cost: Cost) -> Iterator[str]:
    """Yield what a side sends, by kind of payload."""
    if cost.first:
        yield f"{cost.side}, before round 1: {cost.first:,} numbers"
    for way, traffic in (("up", cost.up), ("down", cost.down)):
        kinds = ", ".join(
            f"{kind} {round(count):,} ({size_of(traffic.bytes[kind])})"
            for kind, count in traffic.params.items()
        )
        if kinds:
            yield f"{cost.side}, {way}: {kinds}"


def _learned(method: type[Algorithm]) -> list[str]:
    """Return what readers of the traffic learn about clients, as the payloads declare it."""
    readers = {"the server": method.uploads, "other clients": method.downloads}
    phrases = {
        reader: "; ".join(dict.fromkeys(filter(None, (each.reveals() for each in payloads))))
        for reader, payloads in readers.items()
    }
    return [f"{reader} and eavesdroppers learn: {text}" for reader, text in phrases.items() if text]
