"""The command `python -m fedray.table NAME [KEY=VALUE]...`."""

from collections.abc import Sequence

from fedray.cli.study import table
from fedray.command import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(table, argv, "python -m fedray.table")


if __name__ == "__main__":
    raise SystemExit(main())
