"""`python -m fedray.report`."""

from fedray.report.command import main

if __name__ == "__main__":
    raise SystemExit(main())
