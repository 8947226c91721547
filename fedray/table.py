"""`python -m fedray.table NAME [key=value ...]`: a table of a paper, or one of your own."""

from fedray.studies.command import run_table

if __name__ == "__main__":
    raise SystemExit(run_table())
