"""Studies: many runs. A sweep compares configurations, a table compares methods with verdicts.

file.py      a study as written in tune/: rows, columns, space, seeds, claims, scales
space.py     axes, grids and draws; how a grid is continued at its edge
claims.py    inequalities between cells
plan.py      one scale of a study: all that defines what is run
cell.py      what each cell still needs: it tunes, chooses, reports
store.py     results of runs: from their folders, or from a published table
study.py     the state of an invocation: plan.json
tpe.py       Optuna's next configuration
tune.py      runs as trials of Ray Tune
warm.py      what a run leaves to the next one in its process
ready.py     what must be so before the first run
forecast.py  what is going to be run, in words
progress.py  the bar, and the time left
trials.py    results of a sweep
outcome.py, controls.py    what a table came to
registration.py      plans written down before the first run
interim_looks.py     earlier looks at verdicts, for which the correction accounts
pages.py     its pages and figures
tracking.py  the study in MLflow
decide.py    add seeds until claims are decided
flow.py      begin, resume, hold, run, finish: what commands and the API call

A trial imports this package, so nothing heavy is imported here.
"""
