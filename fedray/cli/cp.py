"""A copy to edit: `fedray cp [KIND] NAME [DEST]`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedray.command import CommandLine, as_path, run_command
from fedray.errors import UserError, nearest, shown
from fedray.files import make_folder, write_atomic
from fedray.shipped import FOLDERS, files, names

PROG = "fedray cp"
COMMANDS = {"experiments": "run", "sweeps": "sweep", "tables": "table"}
"""What takes a file of each kind."""
KINDS = {kind.removesuffix("s"): kind for kind in COMMANDS}
"""The kinds by the word that the command line has for one of them."""


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray cp`."""
    cli = CommandLine(
        prog=prog,
        description="Copy an experiment, sweep or table, to edit it.",
        usage=f"{prog} [-h] [--debug] [{'|'.join(KINDS)}] NAME [DEST]",
        epilog="Where a sweep and a table have the same name, the kind says which is meant.",
    )
    cli.add_argument(
        "words",
        nargs="+",
        type=as_path,
        metavar="NAME",
        help="a name of fedray ls experiments, sweeps or tables; then DEST, a folder, or a file "
        "ending in .yaml; default: here",
    )
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), cp, argv)


def cp(args: argparse.Namespace) -> int:
    """Copy the file, and say how the copy is run; returns the exit code.

    Raises:
        UserError: when the words are too many, or name no file, or two, or one that is there.
    """
    kinds, words = split(args.words)
    kind, source = found(words[0], kinds)
    dest = target(Path(*words[1:]), source)
    make_folder(dest.parent)
    write_atomic(dest, source.read_text(encoding="utf-8"))
    print(f"wrote {dest}\nrun it: fedray {COMMANDS[kind]} {dest}")
    return 0


def split(words: Sequence[Path]) -> tuple[list[str], list[str]]:
    """The words that name kinds, as kinds, and the others, which are a name and perhaps a place.

    Raises:
        UserError: when there are more.
    """
    texts = list(map(str, words))
    named = texts[0] in KINDS and len(texts) > 1
    kinds, rest = ([KINDS[texts[0]]], texts[1:]) if named else (list(FOLDERS), texts)
    if len(rest) > 2:
        raise UserError(f"{shown(rest[2])} is one word too many; {PROG} --help lists them")
    return kinds, rest


def found(name: str, kinds: Sequence[str]) -> tuple[str, Path]:
    """The kind and the file of a name, which is looked for among these kinds.

    Raises:
        UserError: when there is none, or one of several kinds.
    """
    there = [kind for kind in kinds if name in files(kind)]
    if not there:
        known = [each for kind in kinds for each in names(kind)]
        what = "experiment, sweep or table" if len(kinds) > 1 else kinds[0].removesuffix("s")
        raise UserError(f"there is no {what} {shown(name)}.{nearest(name, known)}")
    if len(there) > 1:
        ways = " or ".join(f"{PROG} {kind.removesuffix('s')} {name}" for kind in there)
        raise UserError(f"{name} is the name of several; write {ways}")
    return there[0], files(there[0])[name]


def target(dest: Path, source: Path) -> Path:
    """The file to write.

    Raises:
        UserError: when it is there already.
    """
    path = dest if dest.suffix in (".yaml", ".yml") else dest / source.name
    if path.exists():
        raise UserError(f"{path} is there already; name another file, for example mine.yaml")
    return path
