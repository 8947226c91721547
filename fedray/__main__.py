"""`python -m fedray`: listings, the pages that are written from them, and tables."""

from __future__ import annotations

import sys

from fedray.cli import cost, docs, ls, new, papers, show
from fedray.command import CommandLine, run_command

COMMANDS = {
    "ls": ls.ls,
    "show": show.show,
    "docs": docs.docs,
    "papers": papers.papers,
    "cost": cost.cost,
    "new": new.new,
}


def parser() -> CommandLine:
    """The command line of `python -m fedray`."""
    cli = CommandLine(prog="python -m fedray")
    commands = cli.add_subparsers(dest="command", required=True)
    ls.add_arguments(commands.add_parser("ls", help="what can be chosen by name"))
    show.add_arguments(commands.add_parser("show", help="an experiment's values and their sources"))
    docs.add_arguments(commands.add_parser("docs", help="write README tables and reference page"))
    papers.add_arguments(
        commands.add_parser("papers", help="the papers' tables and figures, with their commands")
    )
    cost.add_arguments(
        commands.add_parser("cost", help="what a method keeps, trains and sends, by component")
    )
    new.add_arguments(
        commands.add_parser("new", help="write a method, model, source or project to begin with")
    )
    commands.add_parser("table", add_help=False, help="methods by settings, as fedray.table")
    cli.add_debug()
    return cli


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["table"]:  # whose flags may stand between its words
        from fedray.tables.command import main as compare

        return compare(list(words[1:]))
    return run_command(parser(), lambda args: COMMANDS[args.command](args), argv)


if __name__ == "__main__":
    raise SystemExit(main())
