"""Nobody chooses on the test: planted metrics are best there in another round and trial."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from rounds import rounds_in

from fedray.cli.report import main as report
from fedray.config import dump_yaml
from fedray.errors import UserError
from fedray.evaluation.score import Score
from fedray.records import RunFolder
from fedray.runtime import clients
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.sweep.command import best_line
from fedray.sweep.ledger import Ledger
from fedray.sweep.seeds import read_merged
from fedray.sweep.show import draw, table
from fedray.sweep.spec import check_configurations, grid, plan_sweep
from fedray.sweep.trial import of_sweep, reports

TEST = {0.1: [100, 20, 60, 30, 30], 0.2: [100, 40, 90, 50, 50]}
"""Right answers of 100 on the test, by learning rate and round: best are lr 0.2 and round 2."""
HELD = {0.1: [10, 9, 4, 6, 5], 0.2: [10, 5, 3, 4, 4]}
"""Of 10 on validation images: best are lr 0.1 and round 1; the untrained model beats all."""
EXPERIMENT = {
    "name": "planted",
    "algorithm": "local",
    "rounds": 4,
    "local_epochs": 1,
    "batch_size": 64,
    "workers": 1,
    "data": {"clients": 2, "samples": 120, "validation_fraction": 0.2},
    "model": {"feature_dim": 16},
}
SWEEP = {
    "answers": "nothing",
    "space": {"lr": {"grid": [0.2, 0.1]}},
    "seeds": [0, 1],
    "scales": {"laptop": {"experiment": "planted.yaml"}},
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with the experiment; every test of a client has the planted scores."""

    def score(algorithm, client, state, down, held_out):
        lr = client.setting.training.lr
        held = None
        if held_out.validation is not None:
            held = Score(HELD[lr][client.round], 10)
        return (Score(TEST[lr][client.round], 100, validation=held),)

    monkeypatch.setattr(clients, "TESTS", {"evaluate": score})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune").mkdir()
    (tmp_path / "planted.yaml").write_text(dump_yaml(EXPERIMENT))
    return tmp_path


def swept(here, *keys, **changes) -> Ledger:
    """A sweep whose trials have run in this process."""
    (here / "tune" / "planted.yaml").write_text(dump_yaml({**SWEEP, **changes}))
    plan = plan_sweep("planted", keys)
    check_configurations(plan)
    ledger = Ledger(here / "sweep", plan)
    for number, config in enumerate(grid(plan.axes)):
        trial = ledger.add(number, config)
        trial.reports = list(reports(of_sweep(plan, config, ledger.home / trial.name)))
        trial.measure(read_merged(ledger.home / trial.name, plan), plan)
        trial.status = "finished"
    return ledger


def lr(trial) -> float:
    return trial.config["lr"]


def test_a_sweeps_best_round_and_configuration_are_validations(here):
    ledger = swept(here)
    best = ledger.best
    assert (lr(best), best.best_rounds) == (0.1, [1, 1])
    assert (best.objective, best.test) == (0.9, 0.2)
    assert best_line(ledger.plan, best) == (
        "best on validation: lr=0.1: validation/local_accuracy 0.9000 in round 1, "
        "local_accuracy 0.2000 on the test  [laptop scale]"
    )
    trials = table(ledger)
    assert trials.header[:4] == ["trial", "lr", "validation", "test"]
    assert trials.rows[1][:4] == ["* 1", "0.1", "90.00 ± 0.00", "20.00 ± 0.00"]
    draw(ledger, here / "sweep.png")
    assert (here / "sweep.png").stat().st_size > 1000


def test_the_papers_switch_is_marked_wherever_it_chose(here):
    ledger = swept(here, select="test")
    best = ledger.best
    assert (lr(best), best.best_rounds, best.objective) == (0.2, [2, 2], 0.9)
    assert best_line(ledger.plan, best).startswith("best on test: lr=0.2: local_accuracy 0.9000")
    run = RunFolder(ledger.home / best.name / "seed_0").read()
    assert run.best.chosen == "test"


def test_the_experiments_own_switch_holds_where_the_sweep_says_nothing(here):
    (here / "tune" / "planted.yaml").write_text(dump_yaml(SWEEP))
    plan = plan_sweep("planted", ["report.select=test"])
    assert (plan.select, plan.objective, plan.how) == ("test", "local_accuracy", "best on test")
    tree = {**EXPERIMENT, "report": {"select": "test"}}
    (here / "planted.yaml").write_text(dump_yaml(tree))
    assert plan_sweep("planted").select == "test"


def test_the_last_round_chooses_configurations_on_validation_too(here):
    ledger = swept(here, at="final")
    assert (lr(ledger.best), ledger.best.best_rounds, ledger.best.test) == (0.1, [4, 4], 0.3)


def test_asha_stops_what_is_worse_on_validation(here):
    ledger = swept(here)
    scheduler = ASHAScheduler("round", "objective", "max", 4, 1, 2)
    runner, decisions = SimpleNamespace(search_alg=None), {}
    for trial in sorted(ledger.ordered, key=lambda t: -lr(t)):
        trial.trial_id = str(trial.number)
        scheduler.on_trial_add(runner, trial)
    for trial in sorted(ledger.ordered, key=lr):  # the better on validation comes first
        first = trial.reports[0]
        assert first["round"] == 1, "the untrained model is reported to nobody"
        decisions[lr(trial)] = scheduler.on_trial_result(runner, trial, first)
    assert decisions == {0.1: TrialScheduler.CONTINUE, 0.2: TrialScheduler.STOP}


def test_a_sweep_without_validation_images_is_refused_unless_it_chooses_nothing(here):
    none = "data.validation_fraction=null"
    with pytest.raises(UserError, match=r"planted chooses by validation/local_accuracy.*select"):
        swept(here, none)
    ledger = swept(here, none, select="nothing", at="final")
    assert ledger.best is None
    assert [trial.test for trial in ledger.ordered] == [0.5, 0.3]
    assert not any("*" in row[0] for row in table(ledger).rows)
    with pytest.raises(UserError, match=r"select: nothing .* at is best; set at: final"):
        swept(here, none, select="nothing")
    with pytest.raises(UserError, match=r"accuracy_novel exists on test images alone"):
        swept(here, metric="accuracy_novel")


def test_a_sweep_by_a_number_that_a_method_cannot_have_is_refused(here):
    with pytest.raises(UserError, match=r"lr=0.2: local has no validation/global_accuracy; set an"):
        swept(here, metric="global_accuracy")


def run_alone(here, name, *keys) -> RunFolder:
    from fedray.runtime.resolve import resolve

    experiment = resolve(str(here / "planted.yaml"), ["lr=0.1", *keys])
    session = Session(experiment, here / name, lambda a: SerialExecutor(a, device()))
    list(session.rounds())
    return RunFolder(here / name)


def device():
    import torch

    return torch.device("cpu")


def test_early_stopping_looks_at_validation(here):
    stopped = run_alone(here, "stopped", "early_stopping.patience=1").read()
    assert (stopped.done, stopped.stopped_early, stopped.best.round) == (2, True, 1)
    on_test = run_alone(here, "on_test", "early_stopping.patience=1", "report.select=test").read()
    assert (on_test.done, on_test.best.round) == (3, 2)
    assert RunFolder(here / "stopped").is_finished


def test_a_run_that_has_stopped_stays_so_and_a_resumed_one_stops_there(here):
    keys = ("early_stopping.patience=2", "checkpoint_every=2")
    folder = run_alone(here, "run", *keys)
    before = rounds_in(folder.path)
    assert len(before) == 4
    assert (folder.path / "checkpoints").exists()
    run_alone(here, "run", *keys)
    assert rounds_in(folder.path) == before


def test_seeds_that_stop_early_wait_for_the_others(here, monkeypatch):
    ledger = swept(here, "early_stopping.patience=1", space={"lr": {"grid": [0.1, 0.2]}})
    assert [trial.last_round for trial in ledger.ordered] == [2, 2]
    assert [trial.objective for trial in ledger.ordered] == [0.9, 0.5]
    plan, trial = ledger.plan, ledger.ordered[0]
    again = list(reports(of_sweep(plan, trial.config, ledger.home / trial.name)))
    assert [each["round"] for each in again] == [2], "its last round is reported again"


def test_a_trial_that_another_process_finished_is_taken_as_it_is(here, monkeypatch):
    ledger = swept(here, "early_stopping.patience=1", space={"lr": {"grid": [0.1]}})
    plan, trial = ledger.plan, ledger.ordered[0]
    folder = ledger.home / trial.name
    for seed in plan.seeds:  # as a table does with runs that nobody goes on with
        shutil.rmtree(folder / f"seed_{seed}" / "checkpoints", ignore_errors=True)
    again = list(reports(of_sweep(plan, trial.config, folder)))
    assert [each["objective"] for each in again] == [trial.objective]


def test_a_report_takes_validations_round_and_says_so(here, capsys):
    run_alone(here, "run")
    assert report([str(here / "run")]) == 0
    page = (here / "run" / "report" / "table.md").read_text()
    assert "best on validation" in page
    assert "| 20.00 | 30.00 |" in page
    assert report([str(here / "run"), "--select", "test"]) == 0
    page = (here / "run" / "report" / "table.md").read_text()
    assert "best on test" in page
    assert "| 60.00 | 30.00 |" in page
    run_alone(here, "none", "data.validation_fraction=null")
    assert report([str(here / "none")]) == 0
    page = (here / "none" / "report" / "table.md").read_text()
    assert "no best round" in page
    assert "| – | 30.00 |" in page


def test_early_stopping_without_images_to_look_at_is_a_sentence(here):
    with pytest.raises(UserError, match=r"early_stopping.patience=1 looks at validation images"):
        run_alone(here, "no", "data.validation_fraction=null", "early_stopping.patience=1")
    with pytest.raises(UserError, match=r"early_stopping.metric: round 1 .* no 'validation/dice'"):
        run_alone(here, "no", "early_stopping.patience=1", "early_stopping.metric=dice")
