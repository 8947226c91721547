"""Analyses of finished runs: `fedray analyse NAME RUN [RUN ...]`.

    harness.py       registration, and what all analyses share: runs, pages, files
    finished.py      a finished run's parts and checkpoint; one more step of its clients
    cka.py           how alike local and global models are, by layer
    local_models.py  models before and after local training, by class
    groups.py        FedMGP's prompt groups within and between clients
    agreement.py     how far runs agree which classes are alike
    phases.py        metrics before and after data changes or clients join
    target.py        rounds, seconds and megabytes to a target
    retest.py        finished models tested again under other settings
    parameters.py    what a method keeps, trains and sends, for `fedray cost`

Each analysis is one function with the decorator `analysis`. Importing this package imports nothing
heavy.
"""
