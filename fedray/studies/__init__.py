"""Studies: many runs. A sweep compares configurations, a table compares methods with verdicts.

file.py       read a study's file in tune/: rows, columns, space, seeds, claims, scales
space.py      axes, grids and random draws; the next value at the end of a grid
printed.py    the scale printed, from the paper scale
plan.py       one scale of a study with the command line's keys: everything that defines its runs
cell.py       the runs that a study needs next: tune, choose, report
store.py      results of runs, read from their folders or from a published table
study.py      how the runs of a study ended
trainable.py  one run as a Trainable of Ray Tune
tune.py       a study as a Tuner: its searcher, Optuna, ASHA
ready.py      checks before the first run
forecast.py   the text that announces a study's runs and their time
progress.py   the progress bar and the remaining time
trials.py     results of a sweep
outcome.py    the record of a table
caveats.py    caveats below tables
pages.py      pages and figures of a table
tracking.py   the study in MLflow
flow.py       run a study, or go on with it; called by the commands and the API

Keep this module free of heavy imports: every trial imports the package.
"""
