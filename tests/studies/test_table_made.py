"""How a table was made: which code made its runs, and what they cost, each counted once."""

from __future__ import annotations

from dataclasses import replace

import pretended_runs
import pytest
from pretended_runs import page_of, publish

from fedray.results.record import TableRecord
from fedray.storage.environment import Environment
from fedray.studies.outcome import outcome
from fedray.studies.study import Study

SECONDS, BYTES = 3.0, 3 * 40
"""Of a pretended run: round 0 and two more."""


def curve(wanted):
    return [(0.0, 0.0), (0.5, 0.4), (0.6, 0.5 + wanted.seed / 1000)]


@pytest.fixture
def by_phase(monkeypatch):
    """Tuning runs are of an older commit than reported ones."""
    whole = pretended_runs.result_of

    def result_of(wanted, *args):
        run = whole(wanted, *args)
        commit = {"tuning": "older", "report": "newer"}[wanted.phase]
        return replace(run, info=replace(run.info, environment=Environment({"git": commit})))

    monkeypatch.setattr(pretended_runs, "result_of", result_of)


def made(book, here) -> tuple[TableRecord, str]:
    publish(book)
    return TableRecord.read(here / "out" / "table.json"), page_of(book)


@pytest.mark.parametrize(
    ("differ", "note"),
    [
        ({"hardware": "X"}, "different hardware: "),
        ({"versions": {"git": "abc", "torch": "2.9"}}, "versions of torch: "),
        ({"versions": {"git": "abc", "numpy": "2.0"}}, "versions of numpy: "),
    ],
)
def test_runs_of_several_machines_or_versions_are_a_caveat(play, monkeypatch, differ, note):
    whole = pretended_runs.result_of
    usual = {"versions": {"git": "abc", "torch": "2.10", "numpy": "2.1"}, "hardware": "Y"}

    def result_of(wanted, *args):
        run = whole(wanted, *args)
        environment = Environment(**(usual | (differ if wanted.seed else {})))
        return replace(run, info=replace(run.info, environment=environment))

    monkeypatch.setattr(pretended_runs, "result_of", result_of)
    [found] = [each for each in outcome(play(curve)).notes if "Runs were made with" in each]
    assert note in found
    differ.clear()
    assert not any("Runs were made with" in each for each in outcome(play(curve)).notes)


def test_the_commits_are_those_of_the_runs_tuning_included(by_phase, play, here):
    record, text = made(play(curve, tuning={"configurations": 3, "rounds": 1}), here)
    assert "- Runs were made with different commits: newer; older." in text
    assert "- commit newer, older; this page " in text
    assert record.commits == ["newer", "older"]


def test_a_run_that_is_tuned_with_and_reported_counts_once(play, here):
    space = {"lr": {"grid": [0.1, 0.2]}}
    changes = {"tuning": {"configurations": 2}, "report": {"seeds": [0]}}
    book = play(curve, space=space, **changes)
    record, _ = made(book, here)
    assert len(record.runs) == len(book.runs) == 4
    assert (record.seconds, record.bytes) == (4 * SECONDS, 4 * BYTES)


def test_a_run_that_rows_share_counts_once_though_one_of_them_misses_a_number(play, here):
    rows = {
        "mine": {"algorithm": "fedproto"},
        "again": {
            "algorithm": "fedproto",
            "metrics": {"local_accuracy_weighted": "local_macro_f1"},
        },
    }
    metrics = ["local_accuracy", "local_accuracy_weighted"]
    book = play(curve, rows=rows, baselines=[], metrics=metrics)
    record, _ = made(book, here)
    assert [cell.phase for cell in record.cells] == ["over", "failed"]
    assert [len(record.reported(cell)) for cell in record.cells] == [2, 0]
    assert (len(record.runs), record.seconds) == (len(book.runs), len(book.runs) * SECONDS)
    assert record.bytes == len(book.runs) * BYTES


def test_runs_that_have_not_begun_did_not_exist_before(play, here):
    changes = {"space": {"lr": {"grid": [0.1, 0.2]}}, "tuning": {"configurations": 2}}
    book = play(curve, **changes)
    assert made(book, here)[0].made.shared == 0
    again = Study(here / "again", book.plan, book.store, command="the command")
    assert outcome(again).made.shared == len(book.runs)
    rest = Study(here / "rest", book.plan, here / "empty", command="the command")
    assert outcome(rest).made.shared == 0
