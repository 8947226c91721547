"""A published table with more seeds or rows: what it has run is not run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import plan_words
from pretended_runs import numbers_of, page_of, pretend, publish
from sweeps import asked

from fedray.config.plugins import use
from fedray.results.design import Place
from fedray.studies.outcome import outcome
from fedray.studies.study import Study

ROWS = {"mine": {"algorithm": "fedproto"}, "base": {"algorithm": "fedavg"}}
CHANGES = {
    "rows": ROWS,
    "baselines": [],
    "report": {"seeds": [0, 1]},
    "claims": [{"better": "mine", "worse": "base"}],
}


def curve(wanted):
    """Of the rates, 0.1 is best on validation, but for `base` it diverges on seed 1."""
    lr, row = wanted.experiment.lr, wanted.place.row
    if row == "base" and wanted.seed == 1 and lr == 0.1:
        return None
    value = 0.5 + (row == "mine") / 10 - abs(lr - 0.1) + wanted.seed / 1000
    return [(0.0, 0.0), (value, value / 2), (value, value / 3)]


@pytest.fixture
def published(play, here) -> Path:
    """The folder of a table with two seeds."""
    book = play(curve, **CHANGES)
    publish(book)
    return here / "out"


def begun(*words: str) -> Study:
    return asked(["tiny", *words])


def numbers(book: Study) -> dict:
    found = outcome(book)
    return {cell.place: numbers_of(found, cell.place) for cell in found.cells}


def test_more_seeds_of_a_published_table_are_all_that_is_run(published, here, write):
    write(**CHANGES | {"report": {"seeds": [0, 1, 2]}})
    book = begun("--from", "out")
    assert book.remaining == 4  # what follows at the ends of the new seed's grids is not known yet
    done = pretend(book, curve)
    assert {run.seed for run in done} == {2}
    alone = Study(here / "alone/it", book.plan, here / "alone/store")
    assert len(pretend(alone, curve)) > 8
    assert numbers(book) == numbers(alone)
    mine, other = outcome(book), outcome(alone)
    assert mine.claims == other.claims
    base = Place("base", mine.plan.places[0].column)
    assert mine.cell(base) == other.cell(base)
    assert mine.cell(base).choices == {0: {"lr": 0.1}, 1: {"lr": 0.02}, 2: {"lr": 0.1}}


def test_the_page_says_which_runs_were_taken_and_can_be_taken_from_itself(published, here, write):
    write(**CHANGES | {"report": {"seeds": [0, 1, 2]}})
    book = begun("--from", "out", "--out", "second")
    pretend(book, curve)
    book.write()
    publish(book)
    text = page_of(book)
    runs = len(json.loads((here / "second" / "table.json").read_text())["runs"])
    new = sum(run.seed == 2 for run in (run.spec for run in book.runs.values()))
    assert f"- {runs - new} of {runs} runs are those of out (made " in text
    assert "--from out" in book.command
    third = begun("--from", "second/table.json")
    assert third.is_complete
    assert numbers(third) == numbers(book)


def test_a_look_makes_no_other_run(published, write):
    write(**CHANGES | {"report": {"seeds": [0, 1], "looks": 1}})
    assert begun("--from", "out").is_complete


def test_a_new_row_is_compared_with_published_ones(published, write):
    write(**CHANGES | {"rows": {"new": {"algorithm": {"name": "fedproto", "lambda": 9}}, **ROWS}})
    done = pretend(begun("--from", "out"), curve)
    assert {run.place.row for run in done} == {"new"}


DOUBTFUL = {"rows": {"doubtful": {"algorithm": "doubtful"}, **ROWS}}


def test_a_row_of_a_plugin_is_compared_with_published_ones_and_published(
    published, write, plugin, here
):
    write(**CHANGES | DOUBTFUL)
    book = begun("--from", "out", "--plugin", "mine.py", "--out", "second")
    assert {run.place.row for run in pretend(book, curve)} == {"doubtful"}
    use(())  # as after a run of another row
    assert not [note for note in outcome(book).notes if note.startswith("Rows ")]
    book.write()
    publish(book)
    (here / "elsewhere").mkdir()
    plugin = plugin.rename(here / "elsewhere" / "mine.py")
    words = ("--from", "second", "--plugin", str(plugin))
    assert begun(*words, "--out", "third").is_complete
    plugin.write_text(plugin.read_text() + "    # another method now\n")
    again = begun(*words, "--out", "fourth")
    assert {run.place.row for run in pretend(again, curve)} == {"doubtful"}


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"rounds": 3}},
        {"at": "final"},
        {"report": {"seeds": [0, 1], "select": "test"}},
    ],
)
def test_what_was_run_chosen_or_measured_otherwise_is_not_taken(published, write, changes):
    write(**CHANGES | changes)
    book = begun("--from", "out")
    assert len(pretend(book, curve)) == len(book.runs) > 8
    assert book.taken == {}


def test_a_metric_that_was_not_published_is_measured_but_not_tuned_for_again(published, write):
    write(**CHANGES | {"metrics": ["local_accuracy", "local_accuracy_weighted"]})
    book = begun("--from", "out", "--out", "second")
    done = pretend(book, curve)
    assert {(run.place.row, run.phase) for run in done} == {("mine", "report"), ("base", "report")}
    book.write()
    publish(book)
    assert begun("--from", "second", "--out", "third").is_complete  # tuning was published, too


def test_a_tuning_run_that_is_reported_too_is_measured_anew_for_a_new_metric(play, here, write):
    tuned = CHANGES | {"tuning": {"configurations": 2}}
    book = play(curve, **tuned)
    publish(book)
    write(**tuned | {"metrics": ["local_accuracy", "local_accuracy_weighted"]})
    again = begun("--from", "out")
    done = pretend(again, curve)
    assert ("mine", 1) in {(run.place.row, run.seed) for run in done}
    mine = [cell for place, cell in numbers(again).items() if place.row == "mine"]
    assert [sorted(values) for values in mine[0].values()] == [
        ["local_accuracy", "local_accuracy_weighted"]
    ] * 2
    assert not {run.key for run in done} & set(again.taken)


def test_a_run_that_lacked_a_number_of_its_row_is_not_published_as_failed(play, here, write):
    book = play(curve, **CHANGES, metrics=["local_accuracy", "local_macro_f1"])
    publish(book)
    runs = json.loads((here / "out/table.json").read_text())["runs"].values()
    assert any("no round has" in run.get("reason", "") for run in runs)
    write(**CHANGES)
    again = begun("--from", "out")
    pretend(again, curve)
    assert all(state.phase == "over" for state in again.states)


def test_a_run_is_known_wherever_its_data_lies(here, write, monkeypatch):
    names, keys = set(), set()
    for place, folder in (("a", "faces"), ("b", "faces"), ("a", "cars")):
        (here / place / folder).mkdir(parents=True)
        monkeypatch.setenv("FEDRAY_DATA", str(here / place))
        plan = plan_words(
            "table", str(write(set={"data.source": "parquet", "data.root": folder})), []
        )
        run = Study(here / "x", plan, here / "store").ask()
        names.add(run.name)
        keys.add(run.key)
    assert len(keys) == 3
    assert len(names) == 2
