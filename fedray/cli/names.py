"""`fedray ls` lists names. `fedray show NAME` explains one.

Of an experiment, it prints all settings and where each is set; of a registered name, parameters,
paper and source file; of a sweep or table, its file.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedray.base.activity import is_terminal, say_next
from fedray.base.errors import UserError, nearest
from fedray.base.shipped import FOLDERS, PACKAGE, files, names
from fedray.command import Command, completed, indented, keys
from fedray.command import plugins as with_plugins
from fedray.results.pages.page import Section
from fedray.results.pages.terminal import print_sections

if TYPE_CHECKING:
    from fedray.cli.catalogue import Entry, Parameter

KEYS = "keys"
"""The listing of an experiment's keys."""
TOGETHER: Mapping[str, tuple[str, ...]] = {"models": ("groups", "architectures")}
"""Listings that combine several kinds, because `model.group` accepts both."""
LISTINGS = (
    "algorithms", *FOLDERS, KEYS, *TOGETHER, "optimizers", "schedules", "architectures", "groups",
    "clips", "sources", "partitions", "evolutions", "publics", "augmentations", "encoders",
    "styles", "metrics",
)  # fmt: skip
"""The kinds that `fedray ls` accepts."""
DEFAULT, GIVEN = "default", "given here"


class ShownKey(NamedTuple):
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


@click.command(cls=Command, epilog="fedray show NAME explains a name.")
@click.argument("kind", required=False, type=click.Choice(LISTINGS), metavar="[KIND]")
@with_plugins
def ls(kind: str | None, plugin: Sequence[str]) -> None:
    """List the names that an experiment, sweep or table can use.

    KIND is for example experiments, algorithms, models, sources, metrics or keys. Without KIND,
    all kinds are listed with the number of their names.
    """
    if kind in FOLDERS:
        rows = [(name, _first_line(path)) for name, path in files(kind).items()]
        print("\n".join(in_columns(rows)))
        return
    entries = read_entries(plugin)
    if kind == "algorithms":
        from fedray.cli.catalogue import by_family

        families = by_family(entries[kind]).items()
        texts = ["\n".join([f"{head}:", *in_columns(_rows(rows))]) for head, rows in families]
        print("\n\n".join(texts))
    elif kind:
        print("\n".join(in_columns(_rows(_listed(kind, entries)))))
    else:
        rows = []
        for each in LISTINGS:
            found = names(each) if each in FOLDERS else [e.name for e in _listed(each, entries)]
            rows.append((each, f"{len(found):>3}  {', '.join(found[:20])}"))
        print("\n".join(in_columns(rows)))


def read_entries(plugins: Sequence[str] = ()) -> dict[str, list[Entry]]:
    """Return the entries of all registries by kind, and the experiment's keys under `KEYS`.

    Raises:
        UserError: if a plug-in cannot be imported, or registers a name that exists already.
    """
    if is_terminal():
        say_next("importing PyTorch")
    from fedray.cli.catalogue import KINDS, entries, experiment_keys
    from fedray.config.plugins import named_plugins, use

    use(named_plugins(plugins) if plugins else (), check=True)
    return {kind: entries(kind) for kind in KINDS} | {KEYS: experiment_keys()}


def _listed(kind: str, entries: Mapping[str, Sequence[Entry]]) -> list[Entry]:
    """Return the entries of a listing, sorted by name; keys in the order of the experiment."""
    rows = [entry for each in TOGETHER.get(kind, (kind,)) for entry in entries[each]]
    return rows if kind == KEYS else sorted(rows, key=lambda entry: entry.name)


def _rows(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    papers = {entry.name: f"  ({entry.paper})" * (entry.paper != "-") for entry in entries}
    stacks = {"yes": "  [stacks]"}
    return [(e.name, f"{e.summary}{papers[e.name]}{stacks.get(e.stacked, '')}") for e in entries]


def _first_line(path: Path) -> str:
    """Return the comment in the first line of a file; "" if that line is not a comment."""
    first = path.read_text(encoding="utf-8").partition("\n")[0].strip()
    return first.lstrip("# ").rstrip(".") if first.startswith("#") else ""


def in_columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield one line per row; on a terminal, cut lines at its width."""
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    first = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        line = f"{name:<{first}}  {text}".rstrip()
        yield line if len(line) <= wide else f"{line[: wide - 3]}..."


# --- show -----------------------------------------------------------------------------------------


@click.command(cls=Command)
@click.argument("name", shell_complete=completed(*FOLDERS))
@keys
@with_plugins
def show(name: str, keys: Sequence[str], plugin: Sequence[str]) -> None:
    """Show the settings of an experiment, or explain a method, model, metric, ...

    For an experiment, every setting and where it is set; KEY=VALUE overrides a setting as in
    fedray run. For other names, the parameters with bounds and defaults, the paper and the
    source file. For the folder of a run, the settings that it ran with.
    """
    if "/" in name and Path(name).is_dir():
        name = f"{name}/run.json"
    is_experiment = name.endswith((".yaml", ".yml")) or "/" in name or name in names("experiments")
    if keys or is_experiment:
        print_settings(settings(name, keys, plugin))
        return
    from fedray.studies.file import read_study

    found = read_entries(plugin)
    texts = [
        "\n".join(entry_lines(kind, entry))
        for kind, entries in found.items()
        for entry in entries
        if entry.name == name
    ]
    texts += [
        f"{path}\n\n{read_study(kind, str(path)).text.rstrip()}"
        for kind in ("sweep", "table")
        if (path := files(f"{kind}s").get(name))
    ]
    if not texts:
        known = {entry.name for entries in found.values() for entry in entries}
        near = nearest(name, known.union(names("sweeps"), names("tables"), names("experiments")))
        advice = near if "Did you mean" in near else " fedray ls lists all names."
        raise UserError(f"there is nothing called '{name}'.{advice}")
    print("\n\n".join(texts))


def entry_lines(kind: str, entry: Entry) -> Iterator[str]:
    """Yield lines of at most 80 columns that describe an entry of a listing."""
    from fedray.cli.catalogue import KINDS

    title = f" ({entry.title})" if entry.title != entry.name else ""
    yield f"{KINDS.get(kind, 'key')} {entry.name}{title}"
    yield from indented(f"{entry.summary}.", 2)
    facts = {
        "paper": "" if entry.paper == "-" else entry.paper,
        "travels": entry.travels,
        "stacked": f"no, {entry.stacked}" if entry.stacked not in ("", "yes") else entry.stacked,
        "source": str(PACKAGE / entry.file) if entry.file else "in a plug-in",
    }
    for label, text in facts.items():
        if text:
            yield from indented(f"{label}: {text}", 2)
    if entry.gives:
        yield "  gives:"
        yield from (line for metric in entry.gives for line in indented(metric, 4))
    if kind == KEYS:
        yield from indented(f"value: {_value(entry.parameters[0])}", 2)
        return
    if entry.parameters:
        yield "  parameters:"
    for parameter in entry.parameters:
        yield from indented(f"{parameter.name}: {_value(parameter)}", 4)
        yield from indented(parameter.text, 8)


def _value(parameter: Parameter) -> str:
    """Return a parameter's type, bounds and default as text."""
    default = f"default {parameter.default}" if parameter.default else "must be given"
    return f"{' '.join(filter(None, (parameter.type, parameter.bounds)))}; {default}"


def settings(
    name: str, assignments: Iterable[str] = (), plugins: Iterable[str] = ()
) -> list[ShownKey]:
    """Return all resolved settings of an experiment, in the order of the schema.

    `data.root` is not resolved, so that the images may be missing. Of a run with plug-ins, they are
    the recorded ones.

    Raises:
        UserError: if the experiment, an assignment or a source is wrong.
    """
    from fedray import config

    pairs, plugins = config.parse_assignments(assignments), list(plugins)
    chain = config.read_chain(name)
    tree = config.merged(chain)
    if config.is_record(name) and not (pairs or plugins) and (texts := config.listed(tree)):
        shas = {text["module"]: text["sha256"] for text in texts if not isinstance(text, str)}
        recorded = config.flatten({**tree, "plugins": shas or tree["plugins"]})
        return [ShownKey(key, value, "") for key, value in recorded.items()]
    tree = config.with_read_plugins(tree, pairs, plugins, named=not config.is_record(name))
    pairs = [pair for pair in pairs if pair[0] != "plugins"]
    tree = config.override(tree, pairs)
    data = tree.get("data")
    root = data.pop("root", None) if isinstance(data, dict) else None
    loadable = [pair for pair in pairs if pair[0] != "data.root"]
    resolved = config.load_experiment(tree, loadable).record()
    resolved["data"]["root"] = root
    sources = {key: file.path.name for file in chain for key in config.flatten(file.tree)}
    if preset := config.preset_keys(tree):
        sources |= dict.fromkeys(preset, f"preset {tree['algorithm']['preset']}")
    sources |= dict.fromkeys(config.flatten(config.override({}, pairs)), GIVEN)
    flat = config.flatten(resolved)
    if plugins:
        sources |= dict.fromkeys([key for key in flat if key.startswith("plugins.")], GIVEN)
    return [ShownKey(key, value, sources.get(key, DEFAULT)) for key, value in flat.items()]


def print_settings(rows: Sequence[ShownKey]) -> None:
    """Print keys, values and sources in three columns, as wide as the terminal."""
    texts = [
        (key, value if isinstance(value, str) else dumps(value, ensure_ascii=False), source)
        for key, value, source in rows
    ]
    print_sections([Section("", (), ShownKey._fields, texts)])
