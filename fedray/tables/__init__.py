"""Comparisons that can be believed: methods by settings, each tuned with the same effort.

spec.py        the YAML in tune/tables/: rows, columns, budgets, claims, controls, three scales
plan.py        one scale of it: all that defines what is run
claims.py      inequalities between cells
search.py      which configurations are tried; how a grid is continued at its edge
measured.py    what one run came to, in the round that is chosen
published.py   the runs of a published table, which are not made again
agenda.py      what is run next: every cell tunes, chooses and reports by itself
book.py        plan.json and the runs' folders; what `--resume` reads
forecast.py    how many runs there will be, and how long they take
runner.py      the runs inside Ray Tune
runs.py        the table in MLflow: a run per cell, below it one per seed
comparing.py   paired comparisons, Holm's correction, and what they decide
controls.py    whether a control does as well as what it is to explain
fairness.py    what makes cells hard to compare
outcome.py     cells, differences, verdicts, controls
page.py        the page; latex.py, figure.py, record.py: its other forms
command.py     `python -m fedray.table NAME`
"""
