"""`fedray ls`, which lists names, and `fedray cp`, which copies a shipped file to edit."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fedray.base.errors import UserError, nearest, shown
from fedray.base.shipped import FOLDERS, files, names
from fedray.cli.entry import Entry
from fedray.cli.listing import LISTINGS, Shipped, by_family, list_entries
from fedray.command import PATH, Command, KnownName, json_flag
from fedray.command import plugins as with_plugins
from fedray.plugins import Plugin
from fedray.storage.files import write_atomic

COMMANDS = {"experiments": "run", "sweeps": "sweep", "tables": "table"}
"""The subcommand that runs a file of each kind."""
KINDS = {kind.removesuffix("s"): kind for kind in COMMANDS}
"""The kinds by their singular, as given to `fedray cp`."""


@click.command(cls=Command, epilog="fedray show NAME explains a name.")
@click.argument("kind", required=False, type=click.Choice(LISTINGS), metavar="[KIND]")
@json_flag
@with_plugins
def ls(kind: str | None, as_json: bool, plugin: Sequence[str]) -> None:
    """List the names that an experiment, sweep or table can use.

    KIND is for example experiments, algorithms, models, sources, metrics or keys. Without KIND,
    all kinds are listed with the number of their names.
    """
    plugins = load_plugins(plugin)
    if as_json:
        kinds = [kind] if kind else LISTINGS
        trees = {
            listing: [asdict(entry) for entry in list_entries(listing, plugins)]
            for listing in kinds
        }
        print(json.dumps(trees[kind] if kind else trees, indent=1, ensure_ascii=False))
        return
    if kind == "algorithms":
        methods = [entry for entry in list_entries(kind, plugins) if isinstance(entry, Entry)]
        print("\n\n".join(_families(by_family(methods))))
        return
    rows = _entries(list_entries(kind, plugins)) if kind else _kinds(plugins)
    print("\n".join(in_columns(list(rows))))


def load_plugins(places: Sequence[str]) -> tuple[Plugin, ...]:
    """Return the plug-ins of `--plugin`."""
    from fedray.plugins import named_plugins  # slow to import

    return named_plugins(places) if places else ()


def _entries(entries: Iterable[Entry | Shipped]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        paper = f"  ({entry.paper})" if isinstance(entry, Entry) and entry.paper != "-" else ""
        stacks = "  [stacks]" if isinstance(entry, Entry) and entry.stacked == "yes" else ""
        yield entry.name, f"{entry.summary}{paper}{stacks}"


def _families(families: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """Yield the text of each family: a heading and its methods."""
    for heading, methods in families.items():
        yield "\n".join([f"{heading}:", *in_columns([*_entries(methods)])])


def _kinds(plugins: Sequence[Plugin]) -> Iterator[tuple[str, str]]:
    """Yield each kind with the number of its names and the first of them."""
    for kind in LISTINGS:
        names = [entry.name for entry in list_entries(kind, plugins)]
        yield kind, f"{len(names):>3}  {', '.join(names[:20])}"


def in_columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield one line per row; on a terminal, cut lines at its width."""
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    first = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        line = f"{name:<{first}}  {text}".rstrip()
        yield line if len(line) <= wide else f"{line[: wide - 3]}..."


# --- copies ---------------------------------------------------------------------------------------


def _completions() -> list[str]:
    return [*KINDS, *(name for kind in COMMANDS for name in names(kind))]


@click.command(cls=Command)
@click.argument(
    "words", nargs=-1, required=True, type=KnownName(_completions), metavar="[KIND] NAME [DEST]"
)
def cp(words: Sequence[str]) -> None:
    """Copy an experiment, sweep or table to edit it.

    NAME is listed by fedray ls experiments, sweeps or tables. The copy also contains the values
    that the file inherits. DEST is a folder or a .yaml file; default: the current
    folder. KIND (experiment, sweep or table) is needed if several kinds have this name.
    """
    kinds, args = _split(words)
    kind, source = find_shipped(args[0], kinds)
    dest = destination(PATH.convert(args[1] if len(args) > 1 else ".", None, None), source)
    dest.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(dest, shipped_text(kind, source))
    print(f"wrote {dest}\nrun it: fedray {COMMANDS[kind]} {dest}")


def shipped_text(kind: str, path: Path) -> str:
    """Return the text of a shipped file, merged with the files that it extends."""
    from fedray.config import dump_yaml, read_experiment
    from fedray.studies.file import read_study

    if kind == "sweeps":
        return read_study("sweep", str(path)).text
    if kind == "tables":
        return read_study("table", str(path)).text
    tree = {key: value for key, value in read_experiment(path.stem).items() if key != "name"}
    return f"# Copied from {path.stem}, merged with the files that it extends.\n" + dump_yaml(tree)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the kinds to search, and the remaining arguments: NAME and optionally DEST.

    Raises:
        UserError: if there are too many arguments.
    """
    is_named = words[0] in KINDS and len(words) > 1
    kinds, args = ([KINDS[words[0]]], words[1:]) if is_named else (list(FOLDERS), words)
    if len(args) > 2:
        raise UserError(f"{shown(args[2])} is one argument too many; see fedray cp --help")
    return kinds, list(args)


def find_shipped(name: str, kinds: Sequence[str]) -> tuple[str, Path]:
    """Return the kind and the file of a shipped name, searched for among `kinds`.

    Raises:
        UserError: if no file or more than one has this name.
    """
    matches = [kind for kind in kinds if name in files(kind)]
    if not matches:
        all_names = [other for kind in kinds for other in names(kind)]
        what = "experiment, sweep or table" if len(kinds) > 1 else kinds[0].removesuffix("s")
        raise UserError(f"there is no {what} {shown(name)}.{nearest(name, all_names)}")
    if len(matches) > 1:
        commands = " or ".join(f"fedray cp {kind.removesuffix('s')} {name}" for kind in matches)
        raise UserError(f"{name} is the name of several files; write {commands}")
    return matches[0], files(matches[0])[name]


def destination(dest: Path, source: Path) -> Path:
    """Return the path of the copy; raise `UserError` if the file exists."""
    path = dest if dest.suffix in (".yaml", ".yml") else dest / source.name
    if path.exists():
        raise UserError(f"{path} is there already; name another file, for example mine.yaml")
    return path
