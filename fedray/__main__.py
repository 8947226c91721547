"""The command line: `fedray COMMAND ...`, or `python -m fedray COMMAND ...`."""

from fedray.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
