"""The command `python -m fedray.sweep NAME [KEY=VALUE]...`."""

from collections.abc import Sequence

from fedray.cli.study import sweep
from fedray.command import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(sweep, argv, "python -m fedray.sweep")


if __name__ == "__main__":
    raise SystemExit(main())
