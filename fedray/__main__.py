"""`python -m fedray WORD ...`, also as `fedray WORD ...`: one command for all there is."""

from fedray.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
