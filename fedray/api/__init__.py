"""The Python interface: `fedray.Experiment("fedtsp_digits", lr=0.1).train()` (docs/api.md).

experiment.py  `Experiment`: set up and train an experiment
result.py      `Result`: the numbers and models of a run
studies.py     `Sweep` and `Table` with their results
trainable.py   `trainable`: an experiment for the user's own `Tuner`
training.py    execution of one run, shared by the command line and Python
"""
