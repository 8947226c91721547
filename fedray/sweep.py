"""`python -m fedray.sweep NAME [key=value ...]`."""

from functools import partial

from fedray.studies import command

parser = partial(command.parser, "sweep")
main = partial(command.main, "sweep")

if __name__ == "__main__":
    raise SystemExit(main())
