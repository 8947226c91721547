"""What can be chosen by name: `fedray ls`; a copy of a file to edit: `fedray cp`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fedray.cli.listing import LISTINGS, Entry, Shipped, by_family, listed
from fedray.command import PATH, Command, Name, json_flag
from fedray.command import plugins as with_plugins
from fedray.errors import UserError, nearest, shown
from fedray.files import make_folder, write_atomic
from fedray.plugins import Plugin
from fedray.shipped import FOLDERS, files, names

COMMANDS = {"experiments": "run", "sweeps": "sweep", "tables": "table"}
"""What takes a file of each kind."""
KINDS = {kind.removesuffix("s"): kind for kind in COMMANDS}
"""The kinds by the word that the command line has for one of them."""


@click.command(cls=Command, epilog="fedray show NAME says more of each.")
@click.argument("kind", required=False, type=click.Choice(LISTINGS), metavar="[KIND]")
@json_flag
@with_plugins
def ls(kind: str | None, as_json: bool, plugin: Sequence[str]) -> None:
    """List what can be chosen by name.

    Without KIND: how many there are of each.
    """
    plugins = plugins_of(plugin)
    if as_json:
        kinds = [kind] if kind else LISTINGS
        found = {each: [asdict(one) for one in listed(each, plugins)] for each in kinds}
        print(json.dumps(found[kind] if kind else found, indent=1, ensure_ascii=False))
        return
    if kind == "algorithms":
        methods = [each for each in listed(kind, plugins) if isinstance(each, Entry)]
        print("\n\n".join(_families(by_family(methods))))
        return
    rows = _entries(listed(kind, plugins)) if kind else _kinds(plugins)
    print("\n".join(in_columns(list(rows))))


def plugins_of(given: Sequence[str]) -> tuple[Plugin, ...]:
    """Return the plug-ins of the flag, trusted; without any, nothing is imported to read them."""
    if not given:
        return ()
    from fedray.config import named_plugins

    return named_plugins(given)


def _entries(found: Iterable[Entry | Shipped]) -> Iterator[tuple[str, str]]:
    for each in found:
        paper = f"  ({each.paper})" if isinstance(each, Entry) and each.paper != "-" else ""
        stacks = "  [stacks]" if isinstance(each, Entry) and each.stacked == "yes" else ""
        yield each.name, f"{each.summary}{paper}{stacks}"


def _families(families: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """Yield each family of methods, its heading above its methods."""
    for heading, methods in families.items():
        yield "\n".join([f"{heading}:", *in_columns([*_entries(methods)])])


def _kinds(plugins: Sequence[Plugin]) -> Iterator[tuple[str, str]]:
    """Yield how many there are of each kind, with the first names."""
    for kind in LISTINGS:
        names = [each.name for each in listed(kind, plugins)]
        yield kind, f"{len(names):>3}  {', '.join(names[:20])}"


def in_columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield each row on one line; on a terminal no wider than it is."""
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    first = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        line = f"{name:<{first}}  {text}".rstrip()
        yield line if len(line) <= wide else f"{line[: wide - 3]}..."


# --- copies ---------------------------------------------------------------------------------------


def _copied() -> list[str]:
    return [*KINDS, *(name for kind in COMMANDS for name in names(kind))]


@click.command(cls=Command)
@click.argument("words", nargs=-1, required=True, type=Name(_copied), metavar="[KIND] NAME [DEST]")
def cp(words: Sequence[str]) -> None:
    """Copy an experiment, sweep or table, to edit it.

    NAME is one of fedray ls experiments, sweeps or tables; an experiment's copy holds every value.
    DEST is a folder, or a file ending in .yaml; default: here. If a sweep and a table have the same
    name, the kind (experiment, sweep, table) says which is meant.
    """
    kinds, rest = _split(words)
    kind, source = found(rest[0], kinds)
    dest = target(PATH.convert(rest[1] if len(rest) > 1 else ".", None, None), source)
    text = source.read_text(encoding="utf-8")
    if kind == "experiments":
        text = whole_experiment(rest[0])
    make_folder(dest.parent)
    write_atomic(dest, text)
    print(f"wrote {dest}\nrun it: fedray {COMMANDS[kind]} {dest}")


def whole_experiment(name: str) -> str:
    """Return a shipped experiment with every file that it extends laid under it."""
    from fedray.config import dump_yaml, read_experiment

    tree = {key: value for key, value in read_experiment(name).items() if key != "name"}
    return f"# Copied from {name} with all that it extends.\n" + dump_yaml(tree)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the kinds that are meant, and the other words: a name and perhaps a place.

    Raises:
        UserError: if there are more.
    """
    is_named = words[0] in KINDS and len(words) > 1
    kinds, rest = ([KINDS[words[0]]], words[1:]) if is_named else (list(FOLDERS), words)
    if len(rest) > 2:
        raise UserError(f"{shown(rest[2])} is one word too many; fedray cp --help lists them")
    return kinds, list(rest)


def found(name: str, kinds: Sequence[str]) -> tuple[str, Path]:
    """Return the kind and the file of a name, which is looked for among these kinds.

    Raises:
        UserError: when there is none, or one of several kinds.
    """
    there = [kind for kind in kinds if name in files(kind)]
    if not there:
        known = [each for kind in kinds for each in names(kind)]
        what = "experiment, sweep or table" if len(kinds) > 1 else kinds[0].removesuffix("s")
        raise UserError(f"there is no {what} {shown(name)}.{nearest(name, known)}")
    if len(there) > 1:
        ways = " or ".join(f"fedray cp {kind.removesuffix('s')} {name}" for kind in there)
        raise UserError(f"{name} is the name of several; write {ways}")
    return there[0], files(there[0])[name]


def target(dest: Path, source: Path) -> Path:
    """Return the file to write.

    Raises:
        UserError: when it is there already.
    """
    path = dest if dest.suffix in (".yaml", ".yml") else dest / source.name
    if path.exists():
        raise UserError(f"{path} is there already; name another file, for example mine.yaml")
    return path
