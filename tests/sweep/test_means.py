"""Means over data sets: by hand, in the round of each seed's objective."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from fedray.compare.means import OF_MEANS
from fedray.errors import UserError
from fedray.records import Round, Traffic
from fedray.sweep import means, show
from fedray.sweep.command import best_trial
from fedray.sweep.ledger import Ledger
from fedray.sweep.spec import grid, plan_sweep

SWEEP = """\
answers: "a question"
space:
  algorithm.tau: {grid: [1, 2]}
  data.root: {grid: [pets, flowers]}
metric: accuracy_cm
at: final
columns: [local_accuracy, accuracy_base, accuracy_novel]
mean_over: data.root
scales:
  laptop: {experiment: fedmgp_base_to_novel, set: {workers: 1}, seeds: [0, 1]}
"""
NAMES = ("local_accuracy", "accuracy_base", "accuracy_novel", "accuracy_cm")
MEASURED = {
    (1, "pets"): (0.9, 0.4, 0.6, 0.7),
    (1, "flowers"): (0.7, 0.2, 0.2, 0.45),
    (2, "pets"): (0.5, 0.5, 0.5, 0.5),
    (2, "flowers"): (0.6, 0.1, 0.3, 0.4),
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))
    for root in ("pets", "flowers"):
        (tmp_path / root).mkdir()
    path = tmp_path / "sets.yaml"
    path.write_text(SWEEP)
    return path


@pytest.fixture
def ledger(file, tmp_path, monkeypatch):
    """A finished sweep: the second seed is 0.1 better; round 1 is perfect and does not count."""
    plan = plan_sweep(str(file))
    ledger = Ledger(tmp_path, plan)
    for number, config in enumerate(grid(plan.axes)):
        trial = ledger.add(number, config)
        trial.status, trial.best_rounds = "finished", [2, 2]
        trial.objective = MEASURED[config["algorithm.tau"], config["data.root"]][3] + 0.05

    def folders(folder, seeds):
        config = next(t.config for t in ledger.ordered if t.name == folder.name)
        values = MEASURED[config["algorithm.tau"], config["data.root"]]
        for seed in seeds:
            rounds = [
                Round(1, 0, dict.fromkeys(NAMES, 1.0), {}, Traffic(), Traffic()),
                Round(
                    2,
                    0,
                    {n: v + 0.1 * seed for n, v in zip(NAMES, values, strict=True)},
                    {},
                    Traffic(),
                    Traffic(),
                ),
            ]
            yield SimpleNamespace(rounds=lambda rounds=rounds: rounds, has_result=False)

    for module in (means, show):
        monkeypatch.setattr(module, "seed_folders", folders)
    return ledger


def test_means_by_hand(ledger):
    first, second = means.mean_rows(ledger)
    assert first.config == {"algorithm.tau": 1}
    assert first.values["accuracy_cm"].mean == pytest.approx((0.7 + 0.45) / 2 + 0.05)
    local = 0.85
    assert first.values["local_accuracy"].mean == pytest.approx(local)
    seeds = [(0.3, 0.4), (0.4, 0.5)]  # base and novel of each seed, means over the data sets
    hm = sum(2 * base * novel / (base + novel) for base, novel in seeds) / 2
    assert first.values["hm_of_means"].mean == pytest.approx(hm, abs=1e-12)
    assert first.values["cm_of_means"].mean == pytest.approx((local + hm) / 2)
    assert second.values["accuracy_cm"].mean == pytest.approx(0.5)
    assert means.best_row(ledger) == first
    assert best_trial(ledger).number == 0


def test_of_means_is_what_a_report_says(tmp_path, ledger, monkeypatch):
    """Seeds whose base and novel accuracies lie crosswise: HM is 0.533, not 0.6."""
    crosswise = [(0.8, 0.4), (0.4, 0.8)]

    def folders(folder, seeds):
        for base, novel in crosswise:
            values = dict.fromkeys(NAMES, 0.5)
            values |= {"accuracy_base": base, "accuracy_novel": novel}
            yield SimpleNamespace(
                rounds=lambda values=values: [Round(2, 0, values, {}, Traffic(), Traffic())],
                has_result=False,
            )

    for module in (means, show):
        monkeypatch.setattr(module, "seed_folders", folders)
    compute, _ = OF_MEANS["accuracy_hm"]
    by_seed = [compute({"accuracy_base": b, "accuracy_novel": n}) for b, n in crosswise]
    (first, _) = means.mean_rows(ledger)
    assert first.values["hm_of_means"].mean == pytest.approx(sum(by_seed) / 2)
    assert first.values["hm_of_means"].mean == pytest.approx(0.8 * 2 / 3)


def test_trials_on_unlike_data_sets_are_not_compared_with_each_other(ledger):
    assert ledger.best is None
    assert ledger.leading is None
    for trial in ledger.ordered[1::2]:
        trial.status = "failed"
    assert best_trial(ledger) is None


def test_a_trial_that_is_not_over_has_no_part_in_a_mean(ledger):
    ledger.trials[1].status = "pending"
    assert means.mean_rows(ledger)[0].missing == ["root=flowers"]


def test_a_seed_that_stopped_early_counts_as_it_was_then(ledger):
    before = means.mean_rows(ledger)[0].values
    for trial in ledger.ordered:
        trial.best_rounds = [2, 9]  # at: final, the second seed had stopped in round 2
    assert means.mean_rows(ledger)[0].values == before


def test_a_configuration_that_lacks_a_data_set_is_not_the_best(ledger):
    ledger.trials[1].status = "failed"
    first, second = means.mean_rows(ledger)
    assert first.missing == ["root=flowers"]
    assert means.best_row(ledger) == second
    table = means.means_table(ledger)
    assert table.header[0] == "mean over data.root"
    assert table.rows[1][0] == "* tau=2"
    assert table.items == ["tau=1 lacks root=flowers"]


def test_a_data_set_that_was_not_tried_is_missed(ledger):
    del ledger.trials[3]
    _, second = means.mean_rows(ledger)
    assert second.missing == ["root=flowers"]


def test_the_table_for_other_programs(ledger, tmp_path):
    means.write_means(ledger, tmp_path / "means.csv")
    head, first, _ = (tmp_path / "means.csv").read_text().splitlines()
    assert head.split(",")[:4] == ["algorithm.tau", "trials", "accuracy_cm", "local_accuracy"]
    assert first.split(",")[:2] == ["1", "2"]


@pytest.mark.parametrize("write", [means.write_means, show.write_csv])
def test_a_table_that_cannot_be_written_is_as_it_was(ledger, tmp_path, monkeypatch, write):
    (tmp_path / "table.csv").write_text("before")

    def fail(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write(ledger, tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "before"


def test_columns_without_a_mean_are_those_of_the_trials(ledger):
    ledger.plan = ledger.plan.model_copy(update={"mean_over": None})
    rows = means.mean_rows(ledger)
    assert [row.config for row in rows] == [trial.config for trial in ledger.ordered]
    assert rows[3].values["accuracy_novel"].mean == pytest.approx(0.35)
    assert means.means_table(ledger).header[0] == "configuration"
    assert best_trial(ledger) is ledger.best


def test_swept_folders_are_found_where_the_sweep_is_started(file, tmp_path, monkeypatch):
    plan = plan_sweep(str(file))
    monkeypatch.delenv("FEDRAY_DATA")  # as on another machine
    experiment = plan.experiment_of({"algorithm.tau": 1, "data.root": "pets"}, 0)
    assert experiment.data.root == str(tmp_path / "pets")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("mean_over: data.root", "mean_over: data.rot", r"is no key of the space.*'data\.root'"),
        ("  algorithm.tau: {grid: [1, 2]}\n", "", "compares the other keys of a grid"),
        ("[pets, flowers]", "[pets, fruits]", r"fruits is not a folder"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(file, before, after, message):
    file.write_text(SWEEP.replace(before, after))
    with pytest.raises(UserError, match=message):
        plan_sweep(str(file))
