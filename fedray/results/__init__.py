"""Finished runs as data and as pages: used by reports, sweeps, tables and `fedray analyse`.

    labels.py    short texts for values and configurations
    frame.py     runs on disk: groups over seeds, labels, filters, one pandas DataFrame of numbers
    paired.py    intervals, paired tests, their correction, number of seeds for a decision
    means.py     means over data sets
    claims.py    inequalities between cells of a table
    design.py    what a table compares, and how
    printed_numbers.py the numbers that the papers print
    record.py    the record of a table (table.json): design, runs, cells, verdicts
    blocks.py    groups that may be compared, and their differences from a base
    difference.py differences between two runs of one experiment
    caveats.py   caveats below reports
    pages/       pages, tables and figures
    analyses/    `fedray analyse`

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
