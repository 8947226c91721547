"""Explanation of a name: `fedray show NAME [key=value ...]`.

Of an experiment every value and where it is from; of what can be chosen by name its parameters,
paper and source file; of a sweep or table its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

import click

from fedray.cli.listing import KINDS, Entry, Parameter, registered
from fedray.cli.names import plugins_of
from fedray.command import Command, Name, json_flag, keys
from fedray.command import plugins as with_plugins
from fedray.errors import UserError, nearest
from fedray.plugins import Plugin
from fedray.shipped import FOLDERS, PACKAGE, files, names

DEFAULT, GIVEN = "default", "given here"
KEY = "key"
WIDTH = 80


@dataclass(frozen=True)
class Setting:
    """One key of an experiment.

    Attributes:
        key: dotted.
        value: the resolved value.
        source: what the file says of it; `DEFAULT` where no file sets it, `GIVEN` where the
            command does, "" where a file sets it and does not say.
    """

    key: str
    value: Any
    source: str


def _shown() -> list[str]:
    entries = {entry.name for found in registered().values() for entry in found}
    return sorted(entries.union(*(names(kind) for kind in FOLDERS)))


@click.command(cls=Command)
@click.argument("name", type=Name(_shown))
@keys
@click.option("--changed", is_flag=True, help="Only what the experiment or the command sets.")
@json_flag
@with_plugins
def command(
    name: str, keys: Sequence[str], changed: bool, as_json: bool, plugin: Sequence[str]
) -> None:
    """Explain a name.

    Of an experiment every value and where it is from, with keys as fedray run has them; of a
    method, model, source, ... its parameters, bounds, defaults, paper and file.
    """
    if keys or is_experiment(name):
        found = settings(name, keys, plugin)
        if changed:
            found = [each for each in found if each.source != DEFAULT]
        print(_as_json(found)) if as_json else print_settings(found)
        return
    plugins = plugins_of(plugin)
    entries = list(entries_called(name, plugins))
    paths = [(kind, files(kind)[name]) for kind in FOLDERS if name in files(kind)]
    if not entries and not paths:
        raise UserError(f"there is nothing called '{name}'.{_near(name, plugins)}")
    if as_json:
        trees = [{"kind": kind, **asdict(entry)} for kind, entry in entries]
        trees += [{"kind": kind, "name": name, "file": str(path)} for kind, path in paths]
        print(json.dumps(trees, indent=1, ensure_ascii=False))
        return
    texts = ["\n".join(entry_lines(kind, entry)) for kind, entry in entries]
    texts += [f"{path}\n\n{path.read_text(encoding='utf-8').rstrip()}" for _, path in paths]
    print("\n\n".join(texts))


def is_experiment(name: str) -> bool:
    """Return whether a name is that of a shipped experiment, or of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name or name in names("experiments")


def _near(name: str, plugins: Sequence[Plugin]) -> str:
    known = {entry.name for found in registered(plugins).values() for entry in found}
    near = nearest(name, known.union(*(names(kind) for kind in FOLDERS)))
    return near if "Did you mean" in near else " fedray ls lists what there is."


# --- what can be chosen by name -------------------------------------------------------------------


def entries_called(name: str, plugins: Sequence[Plugin]) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a name, in all registries and among the keys, with their kinds."""
    for listing, entries in registered(plugins).items():
        for entry in entries:
            if entry.name == name:
                yield KINDS.get(listing, KEY), entry


def entry_lines(kind: str, entry: Entry) -> Iterator[str]:
    """Yield what is known of an entry, in 80 columns."""
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
        yield from (line for each in entry.gives for line in _wrapped(each, 4))
    if kind == KEY:
        yield from _wrapped(f"value: {_value(entry.parameters[0])}", 2)
        return
    if entry.parameters:
        yield "  parameters:"
    for parameter in entry.parameters:
        yield from _parameter(parameter)


def _value(parameter: Parameter) -> str:
    """Type, bounds and default."""
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
) -> list[Setting]:
    """Return every key of an experiment, resolved, in the order of config.yaml.

    Its data need not be there: `data.root` is not resolved.

    Raises:
        UserError: if the experiment, an assignment or a source is wrong.
    """
    from fedray.config import (
        flatten,
        load_experiment,
        merged,
        override,
        parse_assignments,
        read_chain,
        sources_of,
        with_read_plugins,
    )

    pairs, plugins = parse_assignments(assignments), list(plugins)
    chain = read_chain(name)
    tree = with_read_plugins(merged(chain), pairs, plugins, trusted=False)
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    tree = override(tree, pairs)
    others = [pair for pair in pairs if pair[0] != "data.root"]
    data = tree.get("data")
    root = data.pop("root", None) if isinstance(data, dict) else None
    resolved = load_experiment(tree, others).record()
    resolved["data"]["root"] = root
    sources = sources_of(chain) | dict.fromkeys(flatten(override({}, pairs)), GIVEN)
    return [
        Setting(key, value, _source(key, sources, bool(plugins)))
        for key, value in flatten(resolved).items()
    ]


def _source(key: str, sources: Mapping[str, str], with_plugins: bool) -> str:
    """Return where a key's value is from."""
    if with_plugins and key.startswith("plugins."):
        return GIVEN
    return sources.get(key, DEFAULT)


def print_settings(found: Sequence[Setting]) -> None:
    """Keys, values and sources in three columns, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, ratio in (("key", 6), ("value", 5), ("source", 6)):
        table.add_column(column, overflow="fold", ratio=ratio)
    for each in found:
        table.add_row(each.key, plain(each.value), each.source)
    Console(highlight=False, markup=False).print(table)


def _as_json(found: Sequence[Setting]) -> str:
    return json.dumps([asdict(each) for each in found], indent=1, ensure_ascii=False)


def plain(value: Any) -> str:
    """Return a value as YAML has it, on one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
