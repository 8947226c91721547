"""Nobody chooses on the test: planted metrics are best there in another round and run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from sweeps import carry_out, carry_out_all, sweep, write_sweep

from fedray.config import dump_yaml
from fedray.runtime import groups
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import check_cells
from fedray.studies.study import Study
from fedray.studies.trials import SweepOutcome

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
    "space": {"lr": {"grid": [0.2, 0.1]}},
    "seeds": [0, 1],
    "scales": {"laptop": {"experiment": "planted.yaml"}},
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with the experiment; every test of a client has the planted scores."""

    def planted(name, algorithm, client, state, down, splits):
        lr, round_ = client.setting.training.lr, client.round
        right, images = ((TEST[lr][round_], HELD[lr][round_]), (100, 10))
        counts = np.zeros((len(splits[0].sizes), len(splits), 3, 10), np.int64)
        counts[..., 0] = np.transpose((right, images, images))[: len(splits)]
        return counts

    monkeypatch.setattr(groups, "run_test", planted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.yaml").write_text(dump_yaml(EXPERIMENT))
    return tmp_path


def swept(*words: str, **changes) -> Study:
    """Return a sweep whose runs have run in this process."""
    write_sweep("planted", **{**SWEEP, **changes})
    study = sweep(*words, name="planted")
    check_cells(study.plan)
    carry_out_all(study)
    return study


def best_of(study):
    """Return learning rate, round, objective and accuracy on the test of the best configuration."""
    found = SweepOutcome(study)
    frame = found.numbers.frame
    [lr], [round_] = ({*frame.loc[frame["row"] == found.best, key]} for key in ("lr", "round"))
    means = [found.interval(found.best, each).mean for each in (found.chooser, found.metrics[-1])]
    return lr, round_, *(pytest.approx(mean / 100) for mean in means)


def test_a_sweeps_best_round_and_configuration_are_validations():
    study = swept()
    assert best_of(study) == (0.1, 1, 0.9, 0.2)
    assert (study.plan.how, study.plan.chosen_by("all")) == (
        "best on validation",
        "validation/local_accuracy",
    )


def test_the_papers_switch_is_marked_wherever_it_chose():
    study = swept(report={"select": "test"})
    assert best_of(study)[:3] == (0.2, 2, 0.9)
    assert study.plan.how == "best on test"
    frame = SweepOutcome(study).numbers.frame
    folder = frame.loc[frame["lr"] == 0.2, "folder"].iloc[0]
    assert RunFolder(Path(folder)).read().info.select == "test"


def test_the_experiments_own_switch_holds_where_the_sweep_says_nothing(here):
    write_sweep("planted", **SWEEP)
    assert sweep("report.select=test", name="planted").plan.select == "test"
    tree = {**EXPERIMENT, "report": {"select": "test"}}
    (here / "planted.yaml").write_text(dump_yaml(tree))
    assert sweep(name="planted").plan.select == "test"


def test_the_last_round_chooses_configurations_on_validation_too():
    lr, round_, _, on_test = best_of(swept(at="final"))
    assert (lr, round_, on_test) == (0.1, 4, 0.3)


def test_asha_stops_what_is_worse_on_validation():
    write_sweep("planted", **{**SWEEP, "seeds": [0]})
    study = sweep(name="planted")
    found = carry_out_all(study)
    chooser = study.plan.chosen_by("all")
    scheduler = ASHAScheduler("round", chooser, "max", 4, 1, 2)
    runner, decisions = SimpleNamespace(search_alg=None), {}
    runs = sorted(study.runs.values(), key=lambda run: run.spec.config["lr"])
    for run in runs:  # the better on validation comes first
        trial = SimpleNamespace(trial_id=run.spec.key)
        scheduler.on_trial_add(runner, trial)
        first = next(each for each in found[run.spec.key] if each["round"] == 1)
        lr = run.spec.config["lr"]
        decisions[lr] = scheduler.on_trial_result(runner, trial, first)
    assert decisions == {0.1: TrialScheduler.CONTINUE, 0.2: TrialScheduler.STOP}


def test_a_run_that_another_process_finished_is_taken_as_it_is():
    study = swept("seed=0")
    run = next(iter(study.runs.values()))
    again = carry_out(study, run.spec)
    assert [each["round"] for each in again] == [4], "its last round is reported again"
    assert again[0][study.plan.chosen_by("all")] == run.objective
