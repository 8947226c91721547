"""Finished runs as data and as pages: used by reports, sweeps, tables and `fedray analyse`.

    labels.py    short texts for values and configurations
    numbers.py   the one frame of numbers (row, column, seed, metric, value, ...)
    paired.py    intervals, paired tests, their correction
    frame.py     runs on disk: groups over seeds, labels, filters
    comparisons.py groups that are reported together: differences, caveats
    claims.py    inequalities between cells of a table
    design.py    what a table compares, and how
    record.py    the record of a table (table.json): design, runs, cells, verdicts
    difference.py differences between two runs of one experiment
    printed_numbers.py the numbers that the papers print
    pages/       pages, tables and figures
    analyses/    `fedray analyse`

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
