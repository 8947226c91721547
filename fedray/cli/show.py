"""What a name stands for: `fedray show NAME [key=value ...]`.

Of an experiment every value and where it is from; of what can be chosen by name its parameters,
paper and source file; of a sweep or table its file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from textwrap import wrap
from typing import Any

from fedray.cli.kept import is_portable, kept
from fedray.cli.listing import KINDS, Entry, Parameter, registered
from fedray.cli.ls import plugins_of
from fedray.cli.written import without_root, written
from fedray.command import CommandLine, add_plugin, run_command
from fedray.errors import UserError, nearest
from fedray.plugins import Plugin
from fedray.shipped import FOLDERS, PACKAGE, files, names

PROG = "fedray show"
DEFAULT, GIVEN = "default", "given here"
KEY = "key"
WIDTH = 80


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


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray show`."""
    cli = CommandLine(
        prog=prog,
        description="Of an experiment every value and where it is from; of a method, model, "
        "source, ... its parameters, bounds, defaults, paper and file.",
    )
    cli.add_argument("name", help="an experiment, a YAML file, or any name of fedray ls")
    cli.add_argument("set", nargs="*", metavar="key=value", help="keys of the experiment to set")
    cli.add_argument("--json", action="store_true", help="for programs")
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), show, argv)


def show(args: argparse.Namespace) -> int:
    """Print what a name stands for; returns the exit code."""
    if args.set or is_experiment(args.name):
        found = settings(args.name, args.set, args.plugin)
        print(_as_json(found)) if args.json else print_settings(found)
        return 0
    plugins = plugins_of(args.plugin)
    entries = list(entries_called(args.name, plugins))
    paths = [(kind, files(kind)[args.name]) for kind in FOLDERS if args.name in files(kind)]
    if not entries and not paths:
        raise UserError(f"there is nothing called '{args.name}'.{_near(args.name, plugins)}")
    if args.json:
        trees = [{"kind": kind, **asdict(entry)} for kind, entry in entries]
        trees += [{"kind": kind, "name": args.name, "file": str(path)} for kind, path in paths]
        print(json.dumps(trees, indent=1, ensure_ascii=False))
        return 0
    texts = ["\n".join(entry_lines(kind, entry)) for kind, entry in entries]
    texts += [f"{path}\n\n{path.read_text(encoding='utf-8').rstrip()}" for _, path in paths]
    print("\n\n".join(texts))
    return 0


def is_experiment(name: str) -> bool:
    """Whether a name is that of a shipped experiment, or of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name or name in names("experiments")


def _near(name: str, plugins: Sequence[Plugin]) -> str:
    known = {entry.name for found in registered(plugins).values() for entry in found}
    near = nearest(name, known.union(*(names(kind) for kind in FOLDERS)))
    return near if "Did you mean" in near else " fedray ls lists what there is."


# --- what can be chosen by name -------------------------------------------------------------------


def entries_called(name: str, plugins: Sequence[Plugin]) -> Iterator[tuple[str, Entry]]:
    """What has a name, in whichever registry or among the keys, with what it is."""
    for listing, entries in registered(plugins).items():
        for entry in entries:
            if entry.name == name:
                yield KINDS.get(listing, KEY), entry


def entry_lines(kind: str, entry: Entry) -> Iterator[str]:
    """What is known of an entry, in 80 columns."""
    title = f" ({entry.title})" if entry.title != entry.name else ""
    yield f"{kind} {entry.name}{title}"
    yield from _wrapped(f"{entry.summary}.", 2)
    where = str(PACKAGE / entry.file) if entry.file else "in a plug-in"
    paper = "" if entry.paper == "-" else entry.paper
    for label, text in (("paper", paper), ("travels", entry.travels), ("source", where)):
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
    """Every key of an experiment, resolved, in the order of config.yaml.

    Its data need not be there: `data.root` stays as it is written.

    Raises:
        UserError: when the experiment, an assignment or a source is wrong.
    """
    from fedray.config import merged, parse_assignments, read_chain, read_plugins, sources_of

    pairs, more = parse_assignments(assignments), list(plugins)
    chain = read_chain(name)
    tree, sources = merged(chain), sources_of(chain)
    known = None if pairs or more else written(name, tree)
    if known is not None:
        return list(_sourced(known, tree, sources))

    def make() -> tuple[Any, bool]:
        found = [asdict(each) for each in _resolved(tree, pairs, sources, more)]
        return found, is_portable([each for each in found if each["key"] != "data.root"])

    what = ["settings", tree, pairs, sources]
    return [Setting(**each) for each in kept(what, read_plugins(more), make)]


def _resolved(
    tree: Any, pairs: list[tuple[str, Any]], sources: dict[str, str], plugins: list[str]
) -> Iterator[Setting]:
    from fedray.config import flatten, load_experiment, override, with_read_plugins

    tree = with_read_plugins(tree, pairs, plugins, trusted=False)
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    tree = override(tree, pairs)
    others = [pair for pair in pairs if pair[0] != "data.root"]
    resolved = load_experiment(without_root(tree), others).record()
    given = dict.fromkeys(flatten(override({}, pairs)), GIVEN)
    for each in _sourced(resolved, tree, {**sources, **given}):
        is_plugin = plugins and each.key.startswith("plugins.")
        yield replace(each, source=GIVEN) if is_plugin else each


def _sourced(resolved: Any, tree: Any, sources: Mapping[str, str]) -> Iterator[Setting]:
    """The keys of a resolved experiment, its data's root as its file has it."""
    from fedray.config import flatten

    data = tree.get("data")
    resolved["data"]["root"] = data.get("root") if isinstance(data, dict) else None
    for key, value in flatten(resolved).items():
        yield Setting(key, value, sources.get(key, DEFAULT))


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
    """A value as YAML has it, on one line."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
