"""The command `python -m fedray.run EXPERIMENT [KEY=VALUE]...`."""

from collections.abc import Sequence

from fedray.cli.run import command
from fedray.command import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(command, argv, "python -m fedray.run")


if __name__ == "__main__":
    raise SystemExit(main())
