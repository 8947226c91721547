"""Many experiments: a search over configurations, a table, a figure.

spec.py     the YAML in tune/: what is swept, by which search, at which scale
seeds.py    the seeds of a configuration: merged rounds, the objective
trial.py    one configuration inside Ray Tune: the seeds of one federation in lockstep
warm.py     what a trial leaves to the next one in its process
ledger.py   sweep.json: what was asked, every trial and how it ended; what `--resume` reads
search.py   grids and Optuna's samplers behind Ray Tune's interface
runs.py     the sweep in MLflow: a parent run and a child per trial
watch.py    what the driver does while trials run: ledger, tracker, progress
cost.py     how long a trial takes beside another, before either has run
forecast.py how long the sweep still takes
show.py     the table, the figure, the best configuration as a command
means.py    the table of further columns, and means over data sets
command.py  `python -m fedray.sweep NAME`

A trial imports this package, so nothing heavy is imported here.
"""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Run the command `python -m fedray.sweep`; returns the exit code."""
    from fedray.sweep.command import main as run

    return run(argv)
