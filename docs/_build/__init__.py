"""The generator of pages from code, experiments and recorded tables (`make docs`).

__main__.py   `PYTHONPATH=docs python -m _build [--check] [--take DIR]`
templates.py  render the templates
registry.py   docs/keys.md and the site's docs/reference.md
heads.py      parse the docstring of a method's file
originals.py  comparisons with original code
uses.py       find the experiments, sweeps and tables of a method
published.py  recompute the pages of published tables
methods.py    docs/methods/
notebooks.py  docs/notebooks/
privacy.py    docs/privacy.md
sets.py       the tables of public data sets and weights in docs/own-data.md
papers.py     docs/papers.md
results.py    the summary in docs/results.md, and pages of tables taken into docs/results/
"""
