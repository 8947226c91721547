"""`python -m fedray`: listings, and the pages that are written from them."""

from __future__ import annotations

import argparse

from fedray.cli import docs, ls
from fedray.errors import add_debug, guard


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    cli = argparse.ArgumentParser(prog="python -m fedray")
    commands = cli.add_subparsers(dest="command", required=True)
    ls.add_arguments(commands.add_parser("ls", help="what can be chosen by name"))
    docs.add_arguments(commands.add_parser("docs", help="write README tables and reference page"))
    add_debug(cli)
    args = cli.parse_args(argv)
    return guard({"ls": ls.ls, "docs": docs.docs}[args.command], args)


if __name__ == "__main__":
    raise SystemExit(main())
