"""`python -m fedray.sweep NAME [key=value ...]`."""

from fedray.studies.command import run_sweep

if __name__ == "__main__":
    raise SystemExit(run_sweep())
