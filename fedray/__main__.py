"""`python -m fedray WORD ...`, also as `fedray WORD ...`: one command for all there is."""

from __future__ import annotations

from fedray.cli.frame import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
