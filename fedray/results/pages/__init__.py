"""Pages, tables and figures of the comparisons in `fedray.results`.

    cells.py         formatting of numbers and names
    page.py          sections of a page, as Markdown, HTML and LaTeX
    terminal.py      sections on a terminal
    palette.py       colours and sizes of figures
    figures.py       curves, points, swept keys, heat maps
    report.py        the page, tables, figures and CSV of `fedray report`
    table.py         the page of a table
    table_figure.py  the figure of a table
    beside_paper.py  the cells of a table beside the paper's numbers

Importing this package imports none of PyTorch, matplotlib, pandas and SciPy.
"""
