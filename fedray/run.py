"""`python -m fedray.run EXPERIMENT [key=value ...]`."""

from __future__ import annotations

from fedray.cli.run import main

if __name__ == "__main__":
    raise SystemExit(main())
