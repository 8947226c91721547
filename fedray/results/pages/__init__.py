"""Pages, tables and figures of results.

    page.py      sections as Markdown, HTML and LaTeX
    terminal.py  sections on a terminal
    cells.py     numbers and names in cells
    figures.py   curves, points and matrices
    table.py     the page of a table
    report.py    the page of `fedray report`

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
