"""Runs as data, and what may be said of them: for reports, sweeps and tables alike.

    labels.py    values and configurations in few words
    frame.py     runs on disk: groups over seeds, labels, filters, one pandas DataFrame of numbers
    paired.py    intervals, paired tests, their correction, seeds that would decide
    fragile.py   verdicts that rest on little
    means.py     means over data sets
    blocks.py    which groups may be compared, and each against a base
    difference.py how two runs of one experiment differ
    caveats.py   what a reader must know before comparing

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
