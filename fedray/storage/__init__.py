"""What lies on a disk.

files.py        atomic files, reading of users' files, JSON, locks, names and places of folders
cache.py        the node's cache of arrays
run.py          a run: its settings, rounds, best and final
metric.py       the declaration of a metric, and the selection of the best round
environment.py  hardware, numerical libraries and versions
run_folder.py   the run's folder and its files, and their writer
states.py       the clients' states of one run, its commits, and the models that it keeps
"""
