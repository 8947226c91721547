"""The commands.

run.py        `python -m fedray.run`: one experiment
ls.py         `python -m fedray ls`: what can be chosen by name
show.py       `python -m fedray show`: an experiment's values, and where each is from
settings_page.py  the page of the papers' settings
new.py        `python -m fedray new`: a file of one's own to begin with
docs.py       `python -m fedray docs`: the README's tables and the reference page
catalogue.py  what the registries say of their entries
progress.py   how a run shows where it is
"""
