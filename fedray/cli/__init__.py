"""The command `fedray`: one module per subcommand, imported when the subcommand is called.

main.py        the group of all subcommands, with its help
study.py       `fedray sweep` and `table`
names.py       `fedray ls` and `show`; catalogue.py reads registered names from the code
dry_run.py     resolves a command without running it, for `fedray papers` and tests
new.py         `fedray new`, which copies templates/
"""
