"""`python -m fedray`: listings, and the pages that are written from them."""

from __future__ import annotations

from fedray.cli import docs, ls
from fedray.command import CommandLine, run_command

COMMANDS = {"ls": ls.ls, "docs": docs.docs}


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    cli = CommandLine(prog="python -m fedray")
    commands = cli.add_subparsers(dest="command", required=True)
    ls.add_arguments(commands.add_parser("ls", help="what can be chosen by name"))
    docs.add_arguments(commands.add_parser("docs", help="write README tables and reference page"))
    cli.add_debug()
    return run_command(cli, lambda args: COMMANDS[args.command](args), argv)


if __name__ == "__main__":
    raise SystemExit(main())
