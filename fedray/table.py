"""`python -m fedray.table NAME [key=value ...]`."""

from functools import partial

from fedray.studies import command

parser = partial(command.parser, "table")
main = partial(command.main, "table")

if __name__ == "__main__":
    raise SystemExit(main())
