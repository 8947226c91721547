"""What a table runs and what it chooses, with runs that only pretend to train."""

from __future__ import annotations

import pytest
from commands import plan_words
from pretended_runs import end, pretend
from written_runs import write_whole

from fedray.base.errors import ClientError, Failure, UserError
from fedray.core.payload import BadPayload, NotFinitePayload
from fedray.results.design import Place
from fedray.results.paired import Side
from fedray.results.record import DIVERGED, FailedRun, Measured, TableRecord
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import next_runs
from fedray.studies.flow import go_on
from fedray.studies.forecast import headline, planned_cells
from fedray.studies.outcome import outcome
from fedray.studies.plan import RunSpec
from fedray.studies.study import Study, StudyRun
from fedray.studies.trainable import reason_of
from fedray.studies.tune import DIED
from fedray.table import main

MINE, LOCAL = Place("mine", "all"), Place("local", "all")
ON_TEST = {"seeds": [0, 1], "select": "test"}


def chosen(at):
    """The configuration that most seeds chose."""
    choices = list(at.choices.values())
    return max(choices, key=choices.count, default=None)


def state_of(study: Study, place: Place = MINE):
    return next(at for at in study.states if at.place == place)


def reported(record: TableRecord, place: Place = MINE) -> list[Measured]:
    return list(record.reported(record.cell(place)).values())


def flat(wanted: RunSpec) -> list[tuple[float, float]]:
    """Better with a lower rate, whatever is measured, and all of it at the end."""
    return [(0.1, 0.1), (0.2, 0.2), (0.9 - wanted.experiment.lr, 0.9 - wanted.experiment.lr)]


def planted(wanted: RunSpec) -> list[tuple[float, float]]:
    """On validation round 2 and lr 0.02 are best, on test round 1 and lr 0.1, and round 0."""
    if wanted.experiment.lr == 0.02:
        return [(0.99, 0.99), (0.5, 0.6), (0.7, 0.3)]
    return [(0.99, 0.99), (0.6, 0.98), (0.4, 0.2)]


def test_configuration_and_round_are_chosen_on_validation_and_reported_on_test(play):
    study = play(planted, tuning={"configurations": 2})
    assert chosen(state_of(study)) == {"lr": 0.02}
    runs = reported(outcome(study))
    assert [run.round for run in runs] == [2, 2]
    assert [run.values["local_accuracy"] for run in runs] == [0.3, 0.3]
    assert [run.choice for run in runs] == [0.7, 0.7]


def test_the_papers_habit_chooses_on_test_and_says_so(play):
    study = play(planted, tuning={"configurations": 2}, report=ON_TEST)
    assert chosen(state_of(study)) == {"lr": 0.1}
    found = outcome(study)
    assert [run.round for run in reported(found)] == [1, 1]
    assert [run.values["local_accuracy"] for run in reported(found)] == [0.98] * 2
    assert any("chosen on the TEST images" in note for note in found.notes)


def test_no_cell_waits_for_another(here, write):
    write()
    study = Study(here / "out", plan_words("table", "tiny"), here / "store")
    for _ in range(2):
        trial = next(t for t in [study.ask()] if t.place == MINE)
        end(study, trial, flat)
    assert [run.spec.place for run in study.runs.values() if run.is_over] == [MINE, MINE]
    assert state_of(study, LOCAL).phase == "tuning"
    assert len(state_of(study).tried) == 2
    assert state_of(study).pending[0].config == {"lr": 0.004}


# --- edges ----------------------------------------------------------------------------------------


def test_a_bound_of_the_experiment_ends_a_grid(play):
    def more(wanted):
        value = wanted.experiment.participation / 2
        return [(0.0, 0.0), (value, value)]

    space = {"participation": {"grid": [0.5, 1.0]}}
    study = play(more, space=space, tuning={"configurations": 9})
    assert chosen(state_of(study)) == {"participation": 1.0}
    assert "mine: the choice participation=1 is the highest that was tried" in outcome(study).notes


# --- the same run ---------------------------------------------------------------------------------


def test_a_run_that_two_cells_need_is_run_once(play):
    rows = {"mine": "local", "yours": "local"}
    study = play(flat, rows=rows, baselines=[], claims=[{"better": "mine", "worse": "yours"}])
    assert len(study.runs) == len(study.needed) == 6
    first, second = outcome(study).cells
    assert first.reported == second.reported


def test_another_table_finds_the_runs_that_are_there(here, play):
    study = play(flat)
    again = Study(here / "again", study.plan, here / "store")
    assert again.is_complete
    assert again.runs == {}
    assert outcome(again).claims == outcome(study).claims
    longer = Study(
        here / "longer",
        plan_words("table", "tiny", ["report.seeds=[0,1,2]"]),
        here / "store",
    )
    assert {w.seed for w in pretend(longer, flat)} == {2}


def test_half_a_run_is_not_taken_for_a_whole_one(here, play):
    study = play(flat)
    key = next(iter(study.runs))
    folder = RunFolder(here / "store" / key)
    assert folder.is_finished
    write_whole(folder.path, folder.read().until(1))
    assert not folder.is_finished
    again = Study(here / "again", study.plan, here / "store")
    assert again.ask().key == key


def test_one_column_tunes_for_all(play):
    columns = {"x": {}, "y": {"batch_size": 8}}
    study = play(flat, columns=columns, tuning={"at": "y", "configurations": 2})
    tuned = {run.spec.place.column for run in study.runs.values() if run.spec.phase == "tuning"}
    assert tuned == {"y"}
    assert chosen(state_of(study, Place("mine", "x"))) == {"lr": 0.02}
    assert len(reported(outcome(study), Place("mine", "x"))) == 2


def test_what_chooses_may_be_another_metric_than_what_is_shown(play):
    study = play(planted, metrics=["local_accuracy_weighted"], choose="local_accuracy",
                tuning={"configurations": 2})  # fmt: skip
    assert chosen(state_of(study)) == {"lr": 0.02}
    (run, _) = reported(outcome(study))
    assert run.values == {"local_accuracy_weighted": 0.3}


# --- failures -------------------------------------------------------------------------------------


def test_a_configuration_that_fails_is_not_chosen(play):
    def diverging(wanted):
        return None if wanted.experiment.lr < 0.1 else flat(wanted)

    study = play(diverging, tuning={"configurations": 2})
    assert chosen(state_of(study)) == {"lr": 0.1}
    assert "mine: 1 of 2 configurations failed" in outcome(study).notes


def test_a_cell_of_which_nothing_came_through_ends_without_the_others(play):
    study = play(lambda wanted: None if wanted.place == MINE else flat(wanted))
    assert study.is_complete
    assert state_of(study).phase == "failed"
    found = outcome(study)
    assert [each.verdict for each in found.claims] == ["not asked"]
    assert found.numbers.interval(found.against[0].worse, "local_accuracy") is not None


def test_a_row_that_lacks_its_metric_takes_no_other_row_with_it(play):
    rows = {name: {"algorithm": "fedproto"} for name in ("first", "mine", "last")}
    for name in ("first", "last"):
        rows[name]["metrics"] = {"local_accuracy": f"local_acuracy_{name}"}
    study = play(flat, rows=rows, baselines=[], claims=[{"better": "mine", "worse": "first"}])
    phases = {cell.row: cell.phase for cell in outcome(study).cells}
    assert phases == {"first": "failed", "mine": "over", "last": "failed"}
    assert "no round has 'local_acuracy" in study.reasons[0]
    assert study.failures == {}


# --- a choice that diverges when it is reported ---------------------------------------------------


def fragile(*lost: tuple[str, float, int], why: str | None = None):
    """The highest rate is best; reports of these rows, rates and seeds fail, by diverging if not
    otherwise."""

    def curve(wanted):
        lr = wanted.experiment.lr
        if wanted.phase == "report" and (wanted.place.row, lr, wanted.seed) in lost:
            return why
        return [(0.0, 0.0), (lr, lr / 2)]

    return curve


THREE = {
    "space": {"lr": {"grid": [0.01, 0.1, 0.5]}},
    "tuning": {"configurations": 3, "rounds": 1},
    "report": {"seeds": [0, 1, 2]},
}


@pytest.mark.parametrize("why", [f"{DIED} twice", "UserError: CUDA out of memory", "OSError: full"])
def test_no_failure_but_divergence_says_anything_of_a_choice(play, why):
    study = play(fragile(("mine", 0.5, 1), why=why), **THREE)
    assert chosen(state_of(study)) == {"lr": 0.5}
    found = outcome(study)
    assert sorted(found.claims[0].comparison.differences) == [0, 2]
    assert not any(run.diverged for run in found.runs.values() if isinstance(run, FailedRun))
    again = Study(study.home, study.plan, study.store)
    go_on(again, study)
    assert [run.seed for run in state_of(again).pending] == [1]


def test_a_choice_that_diverges_is_a_seed_that_failed_and_is_not_tried_again(play):
    study = play(fragile(("mine", 0.5, 1)), **THREE)
    again = Study(study.home, study.plan, study.store)
    go_on(again, study)
    assert again.is_complete
    found = outcome(again)
    assert sorted(found.claims[0].comparison.differences) == [0, 2]
    assert found.reasons(found.cell(MINE)) == {1: f"{DIVERGED}: its loss is no number"}
    assert state_of(study).choices[1] == {"lr": 0.5}


def test_what_is_reported_does_not_depend_on_which_run_ends_first(here, write):
    write(**THREE)
    found = []
    for backwards in (False, True):
        study = Study(here / "out", plan_words("table", "tiny"), here / f"runs_{backwards}")
        while ready := next_runs(study.plan, study.end_of):
            end(study, ready[-backwards], fragile(("mine", 0.5, 0), ("mine", 0.5, 2)))
        found.append(outcome(study))
        assert state_of(Study(here / "out", study.plan, study.store)).pending  # they run again
    assert (found[0].cells, found[0].claims) == (found[1].cells, found[1].claims)


def test_a_trial_says_whether_a_number_was_not_finite():
    client = ClientError(3, 2, "train", Failure.of(FloatingPointError("the loss became nan")))
    for error in (FloatingPointError("nan"), client, NotFinitePayload("Update.w holds a NaN")):
        assert reason_of(error).startswith(f"{DIVERGED}: ")
    for error in (UserError("out of memory"), OSError("full"), BadPayload("Update.w has shape")):
        assert not reason_of(error).startswith(DIVERGED)


# --- the study ------------------------------------------------------------------------------------


def test_a_study_goes_on_where_it_was(here, write):
    write()
    study = Study(here / "out", plan_words("table", "tiny"), here / "store", command="as typed")
    run = study.ask()
    study.runs[run.key] = StudyRun(run, seconds=3.0)
    study.tell(run, "it died")
    study.write()
    again = Study.read(here / "out")
    assert again.plan == study.plan
    assert (again.command, again.store) == ("as typed", here / "store")
    assert again.failures == {run.key: "it died"}
    assert again.seconds == {run.key: 3.0}
    assert run.key != again.ask().key


def test_rows_are_chosen_by_the_metric_that_is_theirs(play):
    def curve(wanted):
        return [(0.0, 0.0), (0.3, 0.2), (0.4, 0.1)]

    rows = {"mine": {"algorithm": "fedproto"}, "weighted": {"algorithm": "fedproto"}}
    rows["weighted"]["metrics"] = {"local_accuracy": "local_accuracy_weighted"}
    study = play(curve, rows=rows, report=ON_TEST, claims=[{"better": "mine", "worse": "local"}])
    found = outcome(study)
    side = Side("weighted", "all")
    assert found.numbers.by_seed(side, "local_accuracy") == {
        0: pytest.approx(20),
        1: pytest.approx(20),
    }
    assert len(found.distinct) == len(study.runs) < len(found.runs)  # two metrics choose
    assert "weighted: its local_accuracy is local_accuracy_weighted" in outcome(study).notes


def test_what_will_be_run_is_counted(here, write):
    write(report={"seeds": [0, 1, 2]}, tuning={"configurations": 4, "rounds": 1})
    study = Study(here / "out", plan_words("table", "tiny"), here / "store")
    assert (study.total, study.remaining) == (18, 18)
    assert "18 runs" in headline(study)
    end(study, study.ask(), lambda wanted: [(0.0, 0.0), (0.5, 0.5)])  # 2 s for its one round
    assert (study.total, study.remaining) == (18, 17)
    assert "1 are finished" in headline(study)
    assert next(planned_cells(study)) == "mine: lr=0.02; lr=0.1; seeds 0, 1, 2; 1 of 9 finished"


def test_a_plan_is_printed_and_nothing_begun(here, write, capsys):
    write(scales={"laptop": {"hours": 2.5}})
    assert main(["tiny", "--plan"]) == 0
    out = capsys.readouterr().out
    assert "about 2.5 h on one core, by the study" in " ".join(out.split())
    assert "\nlocal: lr=0.02; lr=0.1; seeds 0, 1\n" in out
    assert not (here / "results" / "tables").exists()


def test_a_plan_names_the_rows_that_no_claim_and_no_control_is_about(here, write, capsys):
    rows = {
        "mine": "fedproto",
        "null": {"algorithm": "fedprox", "control": "that prototypes help", "over": "fedtgp"},
        "fedtgp": None,
        "fedavg": None,
        "fedbabu": None,
    }
    write(rows=rows, claims=[{"better": "local", "worse": "mine"}])
    assert main(["tiny", "--plan"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no claim is about: fedavg, fedbabu"
    write(rows=rows)
    assert main(["tiny", "--plan"]) == 0
    assert "no claim is about" not in capsys.readouterr().out
