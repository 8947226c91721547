"""The pages below docs/ that are written from code and experiments.

`python -m fedray docs` writes them; `--check` says whether they are up to date.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from fedray.cli.catalogue import entries, keys
from fedray.cli.keys_page import keys_page
from fedray.cli.links import linked
from fedray.cli.listing import KEYS as KEY_LISTING
from fedray.cli.listing import KINDS, Entry, Parameter
from fedray.cli.method_pages import method_pages
from fedray.cli.papers import page as papers_page
from fedray.cli.privacy_page import privacy_page
from fedray.cli.results_page import RESULTS, results_page, take
from fedray.cli.settings_page import settings_page
from fedray.cli.written import settings_file
from fedray.command import CommandLine, add_plugin, as_path, run_command
from fedray.config import named_plugins
from fedray.core import Algorithm, LocalTraining, SummingMethod, algorithms
from fedray.errors import UserError
from fedray.files import write_atomic
from fedray.plugins import use
from fedray.registry import registry, summary_of

HEADINGS = {
    "clips": "CLIPs",
    "groups": "Model groups",
    "schedules": "Learning rate schedules",
    "styles": "Text styles",
}
REFERENCE = "docs/reference.md"
KEYS = "docs/keys.md"
HOOKS = "docs/hooks.md"
HOOKED = (Algorithm, SummingMethod, LocalTraining)
"""The classes that say what a method may override."""
PRIVACY = "docs/privacy.md"
PAPERS = "docs/papers.md"
LISTING = "fedray/listing.json"
RESOLVED = "fedray/settings.json"
SETTINGS = "docs/settings.md"


PROG = "fedray docs"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray docs`."""
    cli = CommandLine(prog=prog, description="Write the pages that follow from the code.")
    cli.add_argument("--check", action="store_true", help="write nothing; exit with 1 if outdated")
    cli.add_argument("--root", type=as_path, default=Path(), help="the checkout; default: here")
    cli.add_argument(
        "--take", type=as_path, metavar="DIR", help="first copy a table's page into docs/results/"
    )
    add_plugin(cli)
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), docs, argv)


def docs(args: argparse.Namespace) -> int:
    """Write or check the pages; returns the exit code."""
    use(named_plugins(args.plugin), check=True)
    if args.take is not None:
        print(f"wrote {take(args.take, args.root)}")
    written = pages(args.root)
    outdated = [path for path, text in written.items() if _read(path) != text]
    if args.check:
        for path in outdated:
            print(f"{path} is not up to date; run make docs")
        return int(bool(outdated))
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, written[path])
        print(f"wrote {path}")
    return 0


def pages(root: Path) -> dict[Path, str]:
    """What the written pages should be, by path.

    Raises:
        UserError: when the folder is no checkout.
    """
    if not (root / "docs").is_dir():
        raise UserError(f"{root.absolute()} has no folder docs; run this in a checkout of fedray")
    return {
        root / REFERENCE: reference(),
        root / KEYS: keys_page(),
        root / HOOKS: hooks_page(),
        root / PRIVACY: privacy_page(),
        root / PAPERS: papers_page(),
        root / LISTING: listing(),
        root / RESOLVED: settings_file(),
        root / SETTINGS: settings_page(),
        root / RESULTS: results_page(root, _read(root / RESULTS)),
        **{root / path: text for path, text in method_pages().items()},
    }


def reference() -> str:
    """Every entry of every registry with its parameters."""
    parts = [
        "# Reference",
        "",
        "What can be chosen by name, with its parameters; written by `python -m fedray docs`.",
        "`python -m fedray ls KIND --json` gives the same to programs.",
        "",
    ]
    for kind in KINDS:
        parts += [f"## {HEADINGS.get(kind, kind.capitalize())}", ""]
        homes = registry(KINDS[kind])
        for entry in entries(kind):
            if homes.home(entry.name).partition(".")[0] in ("", "fedray"):  # "": of a plug-in
                parts += _section(entry)
    return "\n".join(parts).rstrip() + "\n"


def listing() -> str:
    """What fedray itself registers, an entry on each line, for `fedray ls` of an installed one."""
    found = {KEY_LISTING: keys()}
    for kind in KINDS:
        homes = registry(KINDS[kind])
        found[kind] = [e for e in entries(kind) if homes.home(e.name).startswith("fedray.")]
    kinds = []
    for kind, ours in found.items():
        lines = ",\n".join(json.dumps(asdict(each), ensure_ascii=False) for each in ours)
        kinds.append(f"{json.dumps(kind)}: [\n{lines}\n]")
    return "{" + ",\n".join(kinds) + "}\n"


def hooks_page() -> str:
    """What a method may override, and which methods do."""
    parts = [
        "# Hooks",
        "",
        "What a method may override: all of it in `fedray/core/algorithm.py` and",
        "`fedray/core/training.py`. Written by `python -m fedray docs`.",
        "",
    ]
    for owner in HOOKED:
        parts += [f"## {owner.__name__}", "", f"{summary_of(owner)}.", ""]
        for name in hooks_of(owner):
            hook = getattr(owner, name)
            parts += [f"### {name}{_signature(hook)}", "", f"{inspect.getdoc(hook)}", ""]
            definers, users = overriding(name)
            inherited = (
                f"; by inheritance in {users} methods in all" if users > len(definers) else ""
            )
            parts += [f"Overridden by: {', '.join(definers)}{inherited}.", ""]
    return "\n".join(parts).rstrip() + "\n"


def hooks_of(owner: type[Algorithm]) -> list[str]:
    """The public methods that a class adds for others to override, in their order."""
    return [
        name
        for name, value in vars(owner).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and not getattr(value, "__final__", False)
        and not any(hasattr(base, name) for base in owner.__mro__[1:])
    ]


def overriding(hook: str) -> tuple[list[str], int]:
    """The classes of registered methods, and of their families, that override a hook.

    Returns:
        Their names, sorted, and in how many registered methods one of them is at work.
    """
    definers: set[str] = set()
    users = 0
    for entry in algorithms.entries():
        found = [cls for cls in entry.__mro__ if issubclass(cls, Algorithm) and hook in vars(cls)]
        names = {cls.__name__ for cls in found if cls not in HOOKED}
        definers |= names
        users += bool(names)
    return sorted(definers, key=str.lower), users


def _signature(hook: Callable[..., object]) -> str:
    names = [name for name in inspect.signature(hook).parameters if name != "self"]
    return f"({', '.join(names)})"


def _section(entry: Entry) -> list[str]:
    title = f" ({entry.title})" if entry.title != entry.name else ""
    parts = [f"### {entry.name}{title}", "", f"{entry.summary}."]
    if entry.paper != "-":
        parts.append(f"Paper: {linked(entry.paper)}.")
    if entry.travels:
        parts.append(f"Travels: {entry.travels}.")
    parts.append("")
    if entry.gives:
        parts += [*(f"- `{name}`" for name in entry.gives), ""]
    if entry.parameters:
        parts += ["| parameter | default | type | meaning |", "|---|---|---|---|"]
        parts += [_row(parameter) for parameter in entry.parameters]
        parts.append("")
    return parts


def _row(parameter: Parameter) -> str:
    kind = " ".join(filter(None, (f"`{parameter.type}`", parameter.bounds)))
    cells = (f"`{parameter.name}`", f"`{parameter.default}`", kind, parameter.text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
