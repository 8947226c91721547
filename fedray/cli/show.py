"""An experiment with all its values and where each is from: `python -m fedray show NAME`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from fedray.command import CommandLine, add_plugin, run_command
from fedray.config import (
    flatten,
    load_experiment,
    override,
    parse_assignments,
    read_experiment,
    read_sources,
    with_read_plugins,
)

DEFAULT, GIVEN = "default", "given here"


@dataclass(frozen=True)
class Setting:
    """One key of an experiment.

    Attributes:
        key: dotted.
        value: as it is resolved.
        source: what the file says of it; `DEFAULT` where no file sets it, `GIVEN` where the
            command does, "" where a file sets it and does not say.
    """

    key: str
    value: Any
    source: str


PROG = "fedray show"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray show`."""
    cli = CommandLine(prog=prog, description="Show an experiment's values and where each is from.")
    cli.add_argument("experiment", help="a shipped experiment or a YAML file")
    cli.add_argument("assignments", nargs="*", metavar="key=value", help="keys to set")
    cli.add_argument("--json", action="store_true", help="for programs")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), show, argv)


def show(args: argparse.Namespace) -> int:
    """Print every key with its value and source; returns the exit code."""
    found = settings(args.experiment, args.assignments, args.plugin)
    if args.json:
        print(json.dumps([asdict(each) for each in found], indent=1, ensure_ascii=False))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, ratio in (("key", 6), ("value", 5), ("source", 6)):
        table.add_column(column, overflow="fold", ratio=ratio)
    for each in found:
        table.add_row(each.key, plain(each.value), each.source)
    Console(highlight=False, markup=False).print(table)
    return 0


def settings(
    name: str, assignments: Iterable[str] = (), plugins: Iterable[str] = ()
) -> list[Setting]:
    """Every key of an experiment, resolved, in the order of config.yaml.

    Its data need not be there: `data.root` stays as it is written.

    Raises:
        UserError: when the experiment, an assignment or a source is wrong.
    """
    pairs, sources, plugins = parse_assignments(assignments), read_sources(name), list(plugins)
    tree = with_read_plugins(read_experiment(name), pairs, plugins)
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    tree = override(tree, pairs)
    root = tree.get("data", {}).pop("root", None) if isinstance(tree.get("data"), dict) else None
    resolved = load_experiment(tree, [pair for pair in pairs if pair[0] != "data.root"]).record()
    resolved["data"]["root"] = root
    given = flatten(override({}, pairs))
    found = []
    for key, value in flatten(resolved).items():
        is_given = key in given or (plugins and key.startswith("plugins."))
        source = GIVEN if is_given else sources.get(key, DEFAULT)
        found.append(Setting(key, value, source))
    return found


def plain(value: Any) -> str:
    """A value as YAML has it, on one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
