"""`python -m fedray.table NAME [key=value ...]`: a table of a paper, or one of your own."""

from fedray.tables.command import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    raise SystemExit(main())
