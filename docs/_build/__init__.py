"""The generator of the pages that follow from code, experiments and recorded tables: `make docs`.

__main__.py   `PYTHONPATH=docs python -m _build [--check] [--take DIR]`
templates.py  the templates' environment
registry.py   keys, reference, hooks, and the listings of the package
heads.py      the docstring at the head of a method's file, taken apart
uses.py       experiments, sweeps and tables that a method is in
methods.py    docs/methods/
privacy.py    docs/privacy.md
settings.py   docs/settings.md
papers.py     docs/papers.md
results.py    the summary in docs/results.md, and pages of tables taken into docs/results/
"""
