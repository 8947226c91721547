"""The summary of the tables that were run."""

import json
import re
from pathlib import Path

import pytest

from _build.results import details, not_run, summary, take, with_part
from fedray.base.errors import UserError
from fedray.config import validate
from fedray.results.record import TableRecord
from fedray.storage.files import sealed

DESIGN = {
    "name": "tiny",
    "scale": "laptop",
    "answers": "does mine lead?",
    "experiment": "tiny",
    "bases": {"tiny": {}},
    "set": {},
    "given": {},
    "rows": {
        "mine": {"label": "mine"},
        "base": {"label": "base"},
        "random": {"label": "random", "control": "that words help", "of": "mine", "over": "base"},
    },
    "columns": {"all": {}},
    "metrics": ["local_accuracy"],
    "choose": "local_accuracy",
    "select": "validation",
    "validation_fraction": None,
    "at": "best",
    "tuning": {},
    "report": {"seeds": [0, 1]},
    "claims": ["mine > base"],
}
MADE = {
    "command": "python -m fedray.table tiny",
    "commit": "abc",
    "versions": "",
    "machine": "x86_64, 2 cores",
    "when": "",
    "shared": 0,
    "tuning_rounds": "2",
    "report_rounds": "2",
}
NUMBERS = {"mine": (0.6, 0.62), "base": (0.5, 0.52), "random": (0.58, 0.57)}


def a_run(value, commit="abc"):
    return {
        "round": 2,
        "choice": value,
        "values": {"local_accuracy": value},
        "seconds": 900.0,
        "bytes": 10,
        "partition": "p",
        "data": "d",
        "versions": {"git": commit},
    }


def a_table(name="tiny", unit="share", runs=None, **more):
    """Return the record of a table with two seeds."""
    measured = {f"{row}{seed}": a_run(value) for row, values in NUMBERS.items()
                for seed, value in enumerate(values)}  # fmt: skip
    tree = {
        "format": 6,
        "made": MADE,
        "plan": {**DESIGN, "name": name},
        "metrics": {"local_accuracy": {"name": "local_accuracy", "unit": unit}},
        "runs": {**measured, **(runs or {})},
        "cells": [
            {
                "row": row,
                "column": "all",
                "phase": "over",
                "choices": {str(seed): {} for seed in (0, 1)},
                "reported": {str(seed): f"{row}{seed}" for seed in (0, 1)},
            }
            for row in NUMBERS
        ],
        **more,
    }
    return validate(TableRecord, tree).concluded()


def test_a_claim_counts_as_decided_when_it_holds_or_is_refuted():
    table, other = a_table(), a_table("other")
    first, second, _ = table.claims
    decided = [
        first.model_copy(update={"verdict": "holds"}),
        second.model_copy(update={"verdict": "refuted"}),
    ]
    text = summary([table.model_copy(update={"claims": decided}), other], 2)
    assert "**2 of 5 claims decided** (1 hold, 1 refuted) in 2 tables." in text
    assert "| [tiny](results/tiny/table.md) | does mine lead? | 1 | 1 | 0 |" in text
    assert "| [other](results/other/table.md) | does mine lead? | 0 | 0 | 3 |" in text
    assert "2 further tables of the papers are ready" in text
    assert "mine > base" not in text  # claims are on the tables' own pages


def test_a_control_has_its_difference_and_its_reading():
    start = "| [tiny](results/tiny/table.md) | random for mine | "
    open_one = "open: whether there is a gain"
    assert f"{start}+3.5 [-15.6, 22.6] | {open_one} |" in details([a_table()])
    assert f"{start}+0.035 [-0.1556, 0.2256] | {open_one} |" in details([a_table(unit="number")])
    failed = {f"random{seed}": {"reason": "it died"} for seed in (0, 1)}
    assert f"{start}no runs | {open_one} |" in details([a_table(runs=failed)])


def test_a_line_says_how_a_table_was_made_and_by_which_code():
    start = (
        "- [tiny](results/tiny/table.md): `python -m fedray.table tiny`, seeds 0, 1, 6 runs, "
        "1.5 h on x86_64, 2 cores, commit"
    )
    assert f"{start} abc\n" in details([a_table()])
    older = {"mine0": a_run(0.6, "d0")}  # those of tuning too
    assert f"{start}s abc, d0\n" in details([a_table(runs=older)])


def test_the_papers_tables_that_were_not_run_are_counted(tmp_path):
    folder = tmp_path / "tune/tables"
    folder.mkdir(parents=True)
    for name in ("fedtsp_table1", "fedtsp_table2", "digits"):
        (folder / f"{name}.yaml").write_text(f"answers: {name}, and why?\n")
    (tmp_path / "docs/results/fedtsp_table1").mkdir(parents=True)
    (tmp_path / "docs/results/fedtsp_table1/table.json").write_text(
        json.dumps(sealed(a_table("fedtsp_table1").tree()))
    )
    assert not_run(tmp_path) == 1


def test_what_is_taken_is_read_again(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "table.json").write_text(json.dumps(sealed(a_table().tree())))
    (made / "table.md").write_text("# tiny\n\n![the table as a figure](figure.png)\n")
    (made / "figure.png").write_bytes(b"\x89PNG\r\n")
    to = take(made, tmp_path)
    assert to == tmp_path / "docs/results/tiny"
    assert (to / "table.md").read_text() == (made / "table.md").read_text()
    assert (to / "figure.png").read_bytes() == b"\x89PNG\r\n"
    assert TableRecord.read(to / "table.json").tree() == a_table().tree()


def test_an_edited_table_is_not_taken(tmp_path):
    edited = {**sealed(a_table().tree()), "notes": ["mine leads"]}
    (tmp_path / "table.json").write_text(json.dumps(edited))
    with pytest.raises(UserError, match=r"table\.json cannot be read: .* damaged or edited"):
        take(tmp_path, tmp_path)
    assert not (tmp_path / "docs").exists()


def test_every_published_table_is_whole():
    paths = sorted(Path(__file__).parents[2].glob("docs/results/*/table.json"))
    names = [TableRecord.read(path).plan.name for path in paths]
    assert names == [path.parent.name for path in paths]
    assert paths


def test_every_published_page_says_that_each_seed_chose():
    for path in Path(__file__).parents[2].glob("docs/results/*/table.md"):
        assert re.search(r"of \d+ seeds by itself", path.read_text())


def test_folders_of_the_machine_are_cut_from_why_runs_failed(tmp_path):
    here = 'nan in "loss" (traceback in /tmp/my/runs/0a1b/error.txt, line 3; and/or /data/x.npz)'
    short = 'nan in "loss" (traceback in error.txt, line 3; and/or x.npz)'
    kept = "--plugin /home/me/mine.py"
    table = a_table(
        runs={"mine0": {"reason": f"it diverged: {here}"}},
        notes=[f"mine: {here}"],
        made={**MADE, "command": kept},
    )
    (tmp_path / "table.json").write_text(json.dumps(sealed(table.tree())))
    (tmp_path / "table.md").write_text(f"- mine: it diverged: {here}.\n- command: {kept}\n")
    to = take(tmp_path, tmp_path)
    assert (to / "table.md").read_text() == f"- mine: it diverged: {short}.\n- command: {kept}\n"
    found = TableRecord.read(to / "table.json")
    assert found.runs["mine0"].reason == f"it diverged: {short}"
    assert found.notes == [f"mine: {short}"]
    assert found.made == table.made


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(UserError, match="folder of a table's invocation"):
        take(tmp_path, tmp_path)
    assert not (tmp_path / "docs").exists()


def test_what_stands_around_the_summary_stays():
    text = with_part(
        "before\n<!-- claims: begin -->\nstale\n<!-- claims: end -->\nafter\n", "fresh"
    )
    assert text == "before\n<!-- claims: begin -->\n\nfresh\n\n<!-- claims: end -->\nafter\n"
    assert with_part("no place for it", "fresh") == "no place for it"
