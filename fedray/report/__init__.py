"""Tables and figures out of results: `python -m fedray.report DIR [DIR ...]`.

    runs.py          results on disk, grouped by what differs besides the seed
    unfair.py        what a reader must be warned of before comparing groups
    selecting.py     which runs a report is about, and what it calls them
    comparable.py    which groups may be compared
    compared.py      what is compared: rows, metrics, who with whom
    statistics.py    intervals, paired tests, how many seeds would decide
    means.py         methods by data sets, with the mean over data sets
    table.py         one line per group: for the terminal, as Markdown, as LaTeX, as CSV
    figures.py       curves, heat maps, an objective against what was swept
    sweeps.py        the figures of what was swept
    page.py          one page of everything about runs or a sweep
    section.py       a page's text, cells and figures, whoever writes them
    cells.py         numbers and names as cells
    html.py          a page as one HTML file
    latex.py         tables in LaTeX
    terminal.py      sections on a terminal
    palette.py       colours and sizes of figures
    command.py       the command
    parameters.py    `python -m fedray cost`: what a method keeps, trains and sends
    finished.py      parts and checkpoint of a finished run
    evaluate.py      `python -m fedray.report.evaluate`: finished models tested again, set otherwise
    cka.py           `python -m fedray.report.cka`: local against global models, by layer
    local_models.py  `python -m fedray.report.local_models`: models after local training, by class
    cost.py          `python -m fedray.report.cost`: seconds per client, rounds to a target
    groups.py        `python -m fedray.report.groups`: prompt groups within and between clients
    agreement.py     `python -m fedray.report.agreement`: similarity matrices of several runs
    phases.py        `python -m fedray.report.phases`: before and after data changes or clients join

Importing this package imports neither matplotlib nor torch.
"""

from fedray.report.figures import Row, figure_sweep
from fedray.report.runs import Group, LoadedRun, group, load
from fedray.report.unfair import warnings_of
