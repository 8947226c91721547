"""fedray from Python: `fedray.Experiment("fedtsp_digits", lr=0.1).train()` (docs/api.md).

training.py    one run, round by round: what the command line and Python both go through
experiment.py  an experiment that is set up and trained
result.py      what a run left behind, its models included
studies.py     sweeps and tables
"""
