"""A published table of the second edition, whose runs were named by other identities."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from fedray.__main__ import main
from fedray.config import EXECUTION_KEYS
from fedray.errors import UserError
from fedray.files import write_json
from fedray.records import read_checked, sealed
from fedray.studies.outcome import outcome
from fedray.studies.pages import write_table
from fedray.studies.store import Published, name_of


def curve(wanted):
    return [(0.0, 0.0), (0.5 + wanted.experiment.lr, 0.4), (0.5, 0.3)]


def old_identity(experiment) -> str:
    """The identity as the second edition computed it, with the label `scale`."""
    tree = experiment.record()
    del tree["name"]
    for key in EXECUTION_KEYS:
        section, _, last = key.rpartition(".")
        del (tree[section] if section else tree)[last]
    tree = {key: value for key, value in tree.items() if value != {}}
    return hashlib.sha256(json.dumps([tree, ""], sort_keys=True).encode()).hexdigest()


def short(*what: object) -> str:
    return hashlib.sha256(json.dumps([*what]).encode()).hexdigest()[:24]


@pytest.fixture
def book(play, here):
    """A table that was made; its table.json is of the second edition."""
    book = play(curve)
    (here / "out").mkdir()
    write_table(book)
    runs = [run for cell in outcome(book).cells.values() for run in cell.runs]
    names = {name_of(run.experiment): short(old_identity(run.experiment), None) for run in runs}
    keys = {run.key: short(old_identity(run.experiment), None) for run in runs}
    tree = read_checked(here / "out" / "table.json")
    for run in tree["runs"]:
        run["name"] = names[run["name"]]
    for cell in tree["cells"]:
        for seed in cell["seeds"]:
            seed["run"] = keys[seed["run"]]
    write_json(here / "out" / "table.json", sealed({**tree, "format": 2}))
    return book


def test_a_table_of_the_second_edition_is_converted_once(book, here, capsys):
    path = Path("out") / "table.json"
    with pytest.raises(UserError, match=r"has format 2, .*convert it once with fedray convert out"):
        Published.read("out", path)
    assert main(["convert", "out"]) == 0
    assert "table.json: 10 runs\n" in capsys.readouterr().out
    found = Published.read("out", path)
    runs = [run for cell in outcome(book).cells.values() for run in cell.runs]
    measured = book.measured_runs(runs)
    for run in runs:
        there = found.find(run.experiment, book.plan, run.place.row, run.phase)
        assert there == measured[run.key]
    reported = {seed["run"] for cell in found.tree["cells"] for seed in cell["seeds"]}
    assert reported == {run.key for run in runs if run.phase == "report"}
    assert main(["convert", "out"]) == 0
    assert capsys.readouterr().out == "there is nothing to convert\n"
