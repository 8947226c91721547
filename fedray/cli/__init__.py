"""The commands.

run.py        `python -m fedray.run`: one experiment
ls.py         `python -m fedray ls`: what can be chosen by name
docs.py       `python -m fedray docs`: the README's tables and the reference page
catalogue.py  what the registries say of their entries
progress.py   how a run shows where it is
"""
