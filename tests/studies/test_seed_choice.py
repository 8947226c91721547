"""Each reported seed chooses by its own validation images, so a test counts the luck of tuning."""

from __future__ import annotations

import math
from functools import partial

import pytest
from commands import plan_words
from pretended_runs import end, numbers_of, pretend

import fedray
from fedray.results.design import Place
from fedray.results.pages.table import table_page
from fedray.studies.cell import TriedConfig
from fedray.studies.outcome import outcome
from fedray.studies.study import Study, StudyRun

MINE, LOCAL = Place("mine", "all"), Place("local", "all")


def chosen(at):
    """The configuration that most seeds chose."""
    choices = list(at.choices.values())
    return max(choices, key=choices.count, default=None)


def state_of(study, place=MINE):
    return next(at for at in study.states if at.place == place)


def by_parity(wanted):
    """On validation even seeds do best at 0.02 and odd ones at 0.1; the test says the rate."""
    lr, odd = wanted.experiment.lr, wanted.seed % 2
    good = 0.9 if (lr == 0.1) == bool(odd) else 0.2
    return [(0.0, 0.0), (good, lr)]


def test_every_seed_chooses_by_itself_and_its_runs_are_run_once(play):
    study = play(by_parity, tuning={"configurations": 2})
    at = state_of(study)
    assert at.choices == {0: {"lr": 0.02}, 1: {"lr": 0.1}}
    values = numbers_of(outcome(study), MINE).values()
    assert [each["local_accuracy"] for each in values] == [0.02, 0.1]
    assert len(study.runs) == 2 * 2 * 2  # rows, rates, seeds: what chooses is what is reported
    assert {run.spec.phase for run in study.runs.values()} == {"tuning"}


def test_shorter_runs_choose_and_the_choice_runs_to_the_end(play):
    study = play(by_parity, tuning={"rounds": 1, "configurations": 2})
    mine = [run.spec for run in study.runs.values() if run.spec.place == MINE]
    tuned = [each.experiment.rounds for each in mine if each.phase == "tuning"]
    reported = [(each.seed, each.config["lr"], each.experiment.rounds)
                for each in mine if each.phase == "report"]  # fmt: skip
    assert tuned == [1] * 4
    assert reported == [(0, 0.02, 2), (1, 0.1, 2)]


def lower_is_better(wanted):
    """Seed 0 does best at the highest rate, all others at the lowest."""
    good = 1 - wanted.experiment.lr if wanted.seed else wanted.experiment.lr
    return [(0.0, 0.0), (good, good)]


def test_each_seed_extends_its_own_grid(play):
    study = play(lower_is_better, report={"seeds": [0, 1, 2]})
    at = state_of(study)
    assert {each.config["lr"]: sorted(each.scores) for each in at.tried} == {
        0.02: [0, 1, 2], 0.1: [0, 1, 2], 0.5: [0], 0.004: [1, 2]
    }  # fmt: skip
    assert at.choices == {0: {"lr": 0.5}, 1: {"lr": 0.004}, 2: {"lr": 0.004}}
    assert chosen(at) == {"lr": 0.004}
    found = outcome(study)
    assert not any("tried different numbers" in note for note in found.notes)
    edges = [note for note in found.notes if "mine: the choice" in note]
    assert [note[-11:] for note in edges] == ["ed (seed 0)", "seeds 1, 2)"]
    table = next(each for each in table_page(found) if each.title == "Chosen configurations")
    assert [row[2] for row in table.rows] == ["3"] * 2


LISTS = {
    "one of two edges": {"lr": {"grid": [0.02, 0.1]}},
    "two axes": {"lr": {"grid": [0.02, 0.1]}, "participation": {"grid": [0.25, 0.5]}},
    "keys that vary together": {"lr, batch_size": {"grid": [[0.02, 8], [0.1, 16]]}},
    "random draws": {"lr": {"loguniform": [0.001, 1.0]}},
}


def erratic(wanted):
    """Seeds differ in what is best for them, and some choices of some diverge in the report."""
    experiment = wanted.experiment
    best = (0.0005, 0.03, 0.2, 0.7, 5.0)[wanted.seed]
    if wanted.phase == "report" and wanted.seed in (1, 3) and experiment.lr > 0.05:
        return None
    if wanted.seed == 2 and experiment.participation == 0.25:
        return "OSError: the disk is full"
    good = 1 / (1 + abs(math.log(experiment.lr / best))) - 0.01 * experiment.participation
    return [(0.0, 0.0), (good, good)]


def train(study):
    """Have all runs of a study train."""
    while (run := study.ask()) is not None:
        study.runs[run.key] = StudyRun(run)
        folder = study.folder(run.key)
        fedray.Experiment(run.experiment.tree()).train(folder, executor="serial")
        study.tell(run)


def choices_and_numbers(here, write, name, happen, **changes):
    """Run a table with a row that follows another; return choices and numbers by row and seed."""
    rows = {"mine": "fedproto", "null": {"algorithm": "local", "tuned_as": "mine"}}
    write(rows=rows, baselines=[], **changes)
    study = Study(here / name, plan_words("table", "tiny"), here / f"runs_{name}")
    happen(study)
    record = outcome(study)
    return {
        (cell.row, seed): (cell.choices.get(seed), numbers)
        for cell in record.cells
        for seed, numbers in numbers_of(record, cell.place).items()
    }


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("one of two edges", None),
        ("one of two edges", 1),
        ("two axes", 1),
        ("keys that vary together", None),
        ("random draws", 1),
    ],
)
def test_numbers_and_choices_of_a_seed_depend_on_no_other_seed(here, write, name, rounds):
    search = "random" if name == "random draws" else "grid"
    tuning = {"configurations": 7, "rounds": rounds, "search": search}

    def run(label, seeds):
        happen = partial(pretend, curve=erratic)
        changes = {"tuning": tuning, "space": LISTS[name], "report": {"seeds": seeds}}
        return choices_and_numbers(here, write, label, happen, **changes)

    together = run("together", [0, 1, 2, 3, 4])
    assert run("backwards", [4, 3, 2, 1, 0]) == together
    for last in range(5) if name == "one of two edges" else ():  # runs are reused
        added = run("added", list(range(last + 1)))
        assert added == {key: value for key, value in together.items() if key[1] <= last}
    alone = [run(f"alone{seed}", [seed]) for seed in range(5)]
    assert {key: value for part in alone for key, value in part.items()} == together
    assert len({repr(choice) for choice, _ in together.values()}) > 1  # seeds do differ


@pytest.mark.slow
def test_real_runs_of_a_seed_are_those_that_it_has_alone(here, write):
    def run(label, seeds):
        return choices_and_numbers(here, write, label, train, report={"seeds": seeds})

    together = run("together", [3, 0, 2, 4, 1])
    alone = [run(f"alone{seed}", [seed]) for seed in range(5)]
    assert {key: value for part in alone for key, value in part.items()} == together


def test_a_seed_of_which_nothing_came_through_is_missing_and_the_others_are_reported(play):
    def lost(wanted):
        return None if wanted.place == MINE and wanted.seed == 0 else by_parity(wanted)

    found = outcome(play(lost, report={"seeds": [0, 1, 2]}))
    assert [each is None for each in numbers_of(found, MINE).values()] == [True, False, False]
    assert found.reasons(found.cell(MINE)) == {0: "it diverged: its loss is no number"}
    assert sorted(found.claims[0].comparison.differences) == [1, 2]


def test_a_row_takes_over_the_choice_of_another_seed_by_seed(play):
    rows = {"mine": "fedproto", "null": {"algorithm": "fedavg", "tuned_as": "mine"}}
    study = play(by_parity, rows=rows, baselines=[], claims=[{"better": "mine", "worse": "null"}],
                 tuning={"configurations": 2})  # fmt: skip
    null = state_of(study, Place("null", "all"))
    assert null.choices == state_of(study).choices
    tuned = [run.spec.place for run in study.runs.values() if run.spec.phase == "tuning"]
    assert tuned == [MINE] * 4
    assert not any("different numbers" in note for note in outcome(study).notes)
    reported = [run.spec for run in study.runs.values() if run.spec.place.row == "null"]
    assert [(each.seed, each.config["lr"]) for each in reported] == [(0, 0.02), (1, 0.1)]


@pytest.mark.parametrize("rounds", [None, 1])
@pytest.mark.parametrize("is_told", [True, False], ids=["written", "killed before"])
def test_a_table_that_is_cut_off_anywhere_is_the_undisturbed_one(here, write, rounds, is_told):
    """The short form of the kills in test_table_on_ray.py: after every run, and just before."""

    def curve(wanted):
        lost = wanted.phase == "report" and (wanted.seed, wanted.experiment.lr) == (0, 0.02)
        return None if lost else by_parity(wanted)

    write(tuning={"rounds": rounds}, report={"seeds": [0, 1, 2]})
    study = Study(here / "whole", plan_words("table", "tiny"), here / "whole_store")
    pretend(study, curve)
    whole = outcome(study)
    assert rounds is None or whole.reasons(whole.cells[0])
    study = Study(here / "cut/it", plan_words("table", "tiny"), here / "cut/store")
    study.write()
    cuts = 0
    while (run := study.ask()) is not None:
        end(study, run, curve)
        if is_told or run.key not in study.failures or cuts % 2:  # else it fails again
            study.write()
        study, cuts = Study.read(here / "cut/it"), cuts + 1
    found = outcome(study)
    assert (found.claims, found.notes) == (whole.claims, whole.notes)
    assert (found.cells, found.runs) == (whole.cells, whole.runs)


def test_a_configuration_that_failed_on_a_seed_is_not_ranked_by_the_others():
    assert TriedConfig({}, {0: 0.5, 1: 0.7}).objective == pytest.approx(0.6)
    assert TriedConfig({}, {0: 0.9, 1: None}).objective is None
