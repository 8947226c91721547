"""The summary of the tables that were run."""

import json
from pathlib import Path

import pytest

from fedray.cli.results_page import BEGIN, END, results_page, summary, take, taken
from fedray.errors import UserError

CLAIM = {
    "claim": "mine > base",
    "metric": "local_accuracy",
    "verdict": "holds",
    "seeds_needed": None,
    "mean": 2.04,
    "low": 1.0,
    "high": 3.1,
}


def a_table(name="tiny", **claim):
    return {
        "table": name,
        "answers": "does mine lead?",
        "made": {
            "command": f"python -m fedray.table {name}",
            "runs": 30,
            "seconds": 5400.0,
            "commit": "abc",
            "machine": "x86_64, 2 cores",
        },
        "units": {"local_accuracy": "share", "local_macro_f1": "share"},
        "claims": [CLAIM, {**CLAIM, **claim}],
        "controls": [{"control": "random", "reading": "explains it away"}],
        "plan": {"metrics": ["local_accuracy"], "report": {"seeds": [0, 1]}},
    }


def test_a_claim_counts_as_decided_when_it_holds_or_is_refuted():
    tables = [a_table(verdict="undecided", seeds_needed=9), a_table("other", verdict="refuted")]
    text = summary(tables)
    assert "**3 of 4 claims decided** (2 hold, 1 refuted) in 2 tables." in text
    assert "| 1 | 0 | 1 | random: explains it away |" in text
    assert "undecided; 9 seeds would decide" in text


def test_a_difference_has_its_interval_and_its_command():
    text = summary([a_table()])
    assert "| mine > base | +2.0 [+1.0, +3.1] | holds |" in text
    text = summary([a_table(metric="local_macro_f1")])
    assert "| mine > base (local_macro_f1) | +2.0 [+1.0, +3.1] | holds |" in text
    assert "`python -m fedray.table tiny`, seeds 0, 1, 30 runs, 1.5 h of computing" in text


def test_what_is_taken_is_read_again(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "table.json").write_text(json.dumps(a_table()))
    (made / "table.md").write_text("# tiny\n")
    to = take(made, tmp_path)
    assert to == tmp_path / "docs/results/tiny"
    assert (to / "table.md").read_text() == "# tiny\n"
    assert taken(tmp_path) == [a_table()]


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(UserError, match="folder of a table's invocation"):
        take(tmp_path, tmp_path)
    assert not (tmp_path / "docs").exists()


def test_what_stands_around_the_summary_stays(tmp_path):
    text = results_page(tmp_path, f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "stale" not in text
    assert results_page(Path(), "no place for it") == "no place for it"
