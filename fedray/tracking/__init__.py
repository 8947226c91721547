"""Logging of runs to MLflow. The files of a run are complete without it.

    describe.py  name, params, tags, metrics, data and description of a run in MLflow
    study.py     the same of a study, as its process writes them into its folder
    store.py     the address of MLflow, and its client
    sync.py      `sync(folder, uri)` writes to MLflow what it lacks of a run or study
    follow.py    `tracking`: the child process that repeats this while a run goes on

Importing this package imports neither MLflow nor torch.
"""
