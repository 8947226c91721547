"""A copy to edit: `fedray cp NAME [DEST]`."""

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


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `fedray cp`."""
    cli = CommandLine(prog=prog, description="Copy an experiment, sweep or table, to edit it.")
    cli.add_argument("name", help="a name of fedray ls experiments, sweeps or tables")
    cli.add_argument(
        "dest",
        nargs="?",
        type=as_path,
        default=Path(),
        help="a folder, or a file ending in .yaml; default: here",
    )
    cli.add_debug()
    return cli


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), cp, argv)


def cp(args: argparse.Namespace) -> int:
    """Copy the file, and say how the copy is run; returns the exit code."""
    kind, source = found(args.name)
    dest = target(args.dest, source)
    make_folder(dest.parent)
    write_atomic(dest, source.read_text(encoding="utf-8"))
    print(f"wrote {dest}\nrun it: fedray {COMMANDS[kind]} {dest}")
    return 0


def found(name: str) -> tuple[str, Path]:
    """The kind and the file of a name.

    Raises:
        UserError: when there is none.
    """
    for kind in FOLDERS:
        if name in files(kind):
            return kind, files(kind)[name]
    known = [each for kind in FOLDERS for each in names(kind)]
    raise UserError(f"there is no experiment, sweep or table {shown(name)}.{nearest(name, known)}")


def target(dest: Path, source: Path) -> Path:
    """The file to write.

    Raises:
        UserError: when it is there already.
    """
    path = dest if dest.suffix in (".yaml", ".yml") else dest / source.name
    if path.exists():
        raise UserError(f"{path} is there already; name another file, for example mine.yaml")
    return path
