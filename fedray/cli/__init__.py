"""The command `fedray`: one module per subcommand, imported when the subcommand is called.

main.py           the group of all subcommands, with its help
run.py            `fedray run`; seeds.py runs several seeds, progress.py prints the rounds
study.py          `fedray sweep` and `table`
names.py, show.py `fedray ls`, `cp` and `show`
listing.py        registered names, read from listing.json; catalogue.py reads them from the code
cost.py, data.py, check.py, doctor.py, predict.py, report.py, analyse.py, verify.py, diff.py,
upload.py, papers.py
                  one subcommand each
dry_run.py        resolves a command without running it, for `fedray papers` and tests
new.py            `fedray new`, which copies templates/
"""
