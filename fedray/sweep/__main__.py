"""`python -m fedray.sweep NAME [key=value ...]`."""

from fedray.sweep.command import main

if __name__ == "__main__":
    raise SystemExit(main())
