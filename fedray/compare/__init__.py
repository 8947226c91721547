"""Runs as data, and their comparison: used by reports, sweeps and tables.

    labels.py    short texts for values and configurations
    frame.py     runs on disk: groups over seeds, labels, filters, one pandas DataFrame of numbers
    paired.py    intervals, paired tests, their correction, number of seeds for a decision
    fragile.py   reasons why a verdict is fragile
    means.py     means over data sets
    blocks.py    groups that may be compared, and their differences from a base
    difference.py differences between two runs of one experiment
    caveats.py   caveats below reports and tables

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
