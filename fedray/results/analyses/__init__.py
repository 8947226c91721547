"""Analyses of finished runs: `fedray analyse NAME RUN [RUN ...]`.

    harness.py       registration of analyses, and their common parts: runs, pages, files
    extra_step.py    parts and checkpoint of a finished run; one more step of its clients
    cka.py           similarity of local and global models, by layer
    local_models.py  models before and after local training, by class
    groups.py        FedMGP's prompt groups within and between clients
    agreement.py     agreement of runs on the similarity of classes
    phases.py        metrics before and after data changes or clients join
    target.py        rounds, seconds and megabytes to a target
    retest.py        finished models tested again under other settings
    parameters.py    numbers that a method keeps, trains and sends, for `fedray cost`

Each analysis is one function with the decorator `analysis`. Importing this package imports no heavy
library.
"""
