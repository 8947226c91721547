"""`fedray show NAME [key=value ...]`: explain a name.

For an experiment, all settings and where each is set; for a registered name, its parameters, paper
and source file; for a sweep or table, the content of its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from fedray.base.errors import UserError, nearest, printable
from fedray.base.shipped import FOLDERS, PACKAGE, files, names
from fedray.cli.entry import KINDS, Entry, Parameter
from fedray.cli.listing import read_entries
from fedray.cli.names import load_plugins, shipped_text
from fedray.command import Command, KnownName, json_flag, keys
from fedray.command import plugins as with_plugins
from fedray.plugins import Plugin

DEFAULT, GIVEN = "default", "given here"
KEY = "key"
WIDTH = 80


@dataclass(frozen=True)
class ResolvedKey:
    """One key of an experiment.

    Attributes:
        key: the dotted key.
        value: the resolved value.
        source: the file that sets the key; `DEFAULT` if no file sets it; `GIVEN` if the command
            line sets it.
    """

    key: str
    value: Any
    source: str


def _completions() -> list[str]:
    entries = {entry.name for listing in read_entries().values() for entry in listing}
    return sorted(entries.union(*(names(kind) for kind in FOLDERS)))


@click.command(cls=Command)
@click.argument("name", type=KnownName(_completions))
@keys
@json_flag
@with_plugins
def command(name: str, keys: Sequence[str], as_json: bool, plugin: Sequence[str]) -> None:
    """Show the settings of an experiment, or explain a method, model, metric, ...

    For an experiment, every setting and where it is set; KEY=VALUE overrides a setting as in
    fedray run. For other names, the parameters with bounds and defaults, the paper and the
    source file. For the folder of a run, the settings that it ran with.
    """
    if "/" in name and Path(name).is_dir():
        name = f"{name}/run.json"
    if keys or is_experiment(name):
        rows = settings(name, keys, plugin)
        print(_as_json(rows)) if as_json else print_settings(rows)
        return
    plugins = load_plugins(plugin)
    entries = list(find_entries(name, plugins))
    paths = [(kind, files(kind)[name]) for kind in FOLDERS if name in files(kind)]
    if not entries and not paths:
        raise UserError(f"there is nothing called '{name}'.{_suggestion(name, plugins)}")
    if as_json:
        trees = [{"kind": kind, **asdict(entry)} for kind, entry in entries]
        trees += [{"kind": kind, "name": name, "file": str(path)} for kind, path in paths]
        print(json.dumps(trees, indent=1, ensure_ascii=False))
        return
    texts = ["\n".join(entry_lines(kind, entry)) for kind, entry in entries]
    texts += [f"{path}\n\n{shipped_text(kind, path).rstrip()}" for kind, path in paths]
    print("\n\n".join(texts))


def is_experiment(name: str) -> bool:
    """Return True if a name is a shipped experiment or a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name or name in names("experiments")


def _suggestion(name: str, plugins: Sequence[Plugin]) -> str:
    all_names = {entry.name for listing in read_entries(plugins).values() for entry in listing}
    near = nearest(name, all_names.union(*(names(kind) for kind in FOLDERS)))
    return near if "Did you mean" in near else " fedray ls lists all names."


# --- registered names -----------------------------------------------------------------------------


def find_entries(name: str, plugins: Sequence[Plugin]) -> Iterator[tuple[str, Entry]]:
    """Yield kind and entry of a name, from all registries and the experiment's keys."""
    for listing, entries in read_entries(plugins).items():
        for entry in entries:
            if entry.name == name:
                yield KINDS.get(listing, KEY), entry


def entry_lines(kind: str, entry: Entry) -> Iterator[str]:
    """Yield lines of at most 80 columns that describe an entry."""
    title = f" ({entry.title})" if entry.title != entry.name else ""
    yield f"{kind} {entry.name}{title}"
    yield from _wrapped(f"{entry.summary}.", 2)
    where = str(PACKAGE / entry.file) if entry.file else "in a plug-in"
    paper = "" if entry.paper == "-" else entry.paper
    facts = {
        "paper": paper,
        "travels": entry.travels,
        "stacked": f"no, {entry.stacked}" if entry.stacked not in ("", "yes") else entry.stacked,
        "source": where,
    }
    for label, text in facts.items():
        if text:
            yield from _wrapped(f"{label}: {text}", 2)
    if entry.gives:
        yield "  gives:"
        yield from (line for metric in entry.gives for line in _wrapped(metric, 4))
    if kind == KEY:
        yield from _wrapped(f"value: {_value(entry.parameters[0])}", 2)
        return
    if entry.parameters:
        yield "  parameters:"
    for parameter in entry.parameters:
        yield from _parameter(parameter)


def _value(parameter: Parameter) -> str:
    """Return a parameter's type, bounds and default as text."""
    default = f"default {parameter.default}" if parameter.default else "must be given"
    return f"{' '.join(filter(None, (parameter.type, parameter.bounds)))}; {default}"


def _parameter(parameter: Parameter) -> Iterator[str]:
    yield from _wrapped(f"{parameter.name}: {_value(parameter)}", 4)
    yield from _wrapped(parameter.text, 8)


def _wrapped(text: str, indent: int) -> list[str]:
    space = " " * indent
    return wrap(
        text,
        WIDTH,
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


# --- experiments ----------------------------------------------------------------------------------


def settings(
    name: str, assignments: Iterable[str] = (), plugins: Iterable[str] = ()
) -> list[ResolvedKey]:
    """Return all resolved settings of an experiment, in the order of the schema.

    `data.root` is not resolved, so that the images may be missing.

    Raises:
        UserError: if the experiment, an assignment or a source is wrong.
    """
    from fedray.config import (
        flatten,
        is_record,
        listed,
        load_experiment,
        merged,
        override,
        parse_assignments,
        preset_keys,
        read_chain,
        with_read_plugins,
    )

    pairs, plugins = parse_assignments(assignments), list(plugins)
    chain = read_chain(name)
    if is_record(name) and not (pairs or plugins) and listed(merged(chain)):
        return _as_recorded(merged(chain))
    tree = with_read_plugins(merged(chain), pairs, plugins, named=not is_record(name))
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    tree = override(tree, pairs)
    loadable = [pair for pair in pairs if pair[0] != "data.root"]
    data = tree.get("data")
    root = data.pop("root", None) if isinstance(data, dict) else None
    resolved = load_experiment(tree, loadable).record()
    resolved["data"]["root"] = root
    keys = preset_keys(tree)
    by_preset = dict.fromkeys(keys, f"preset {tree['algorithm']['preset']}") if keys else {}
    given = dict.fromkeys(flatten(override({}, pairs)), GIVEN)
    by_file = {key: file.path.name for file in chain for key in flatten(file.tree)}
    sources = by_file | by_preset | given
    return [
        ResolvedKey(key, value, _source(key, sources, bool(plugins)))
        for key, value in flatten(resolved).items()
    ]


def _as_recorded(tree: Mapping[str, Any]) -> list[ResolvedKey]:
    """Return the settings of a run, which are complete, without its plug-ins."""
    from fedray.config import flatten, listed

    texts = [plugin for plugin in listed(tree) if not isinstance(plugin, str)]
    plugins = {text.get("module"): text.get("sha256") for text in texts}
    settings = flatten({**tree, "plugins": plugins or tree["plugins"]})
    return [ResolvedKey(key, value, "") for key, value in settings.items()]


def _source(key: str, sources: Mapping[str, str], with_plugins: bool) -> str:
    """Return where a key is set."""
    if with_plugins and key.startswith("plugins."):
        return GIVEN
    return sources.get(key, DEFAULT)


def print_settings(rows: Sequence[ResolvedKey]) -> None:
    """Print keys, values and sources in three columns, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, ratio in (("key", 6), ("value", 5), ("source", 6)):
        table.add_column(column, overflow="fold", ratio=ratio)
    for setting in rows:
        table.add_row(setting.key, yaml_value(setting.value), setting.source)
    Console(highlight=False, markup=False).print(table)


def _as_json(rows: Sequence[ResolvedKey]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)


def yaml_value(value: Any) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, str):
        return printable(value)
    return printable(json.dumps(value, ensure_ascii=False))
