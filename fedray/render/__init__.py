"""Pages, tables and figures of what `fedray.compare` found.

    cells.py         numbers and names as texts of cells
    page.py          sections of a page, as Markdown, HTML and LaTeX (templates/)
    terminal.py      sections on a terminal
    palette.py       colours and sizes of figures
    figures.py       curves, points, swept keys, heat maps
    report.py        the page of runs, and its tables, figures and CSV
    table.py         the page of a table
    table_figure.py  its figure
    record.py        its numbers as JSON
    sweep.py         the table, CSV and figure of a sweep's trials

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
