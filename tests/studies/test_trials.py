"""What a sweep came to: means over seeds and over data sets, by hand."""

from __future__ import annotations

import shutil

import pytest
from commands import plan_words
from pretended_runs import result_of

from fedray.errors import UserError
from fedray.records import Metric, RunFolder
from fedray.render.sweep import TrialLine, trials_section
from fedray.studies.study import Study
from fedray.studies.trials import HM, sweep_outcome

SWEEP = """\
answers: "a question"
space:
  algorithm.tau: {grid: [1, 2]}
  data.root: {grid: [pets, flowers]}
metrics: [accuracy_cm, local_accuracy, accuracy_base, accuracy_novel]
select: test
at: final
mean_over: data.root
scales:
  laptop: {experiment: fedmgp_base_to_novel, set: {workers: 1}, report: {seeds: [0, 1]}}
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
def play(file, tmp_path):
    """`play(numbers, lost=...)` has the sweep's runs come to some numbers, in their last round.

    Round 1 is perfect and does not count. Runs whose configuration is in `lost` fail.
    """

    def play(numbers, lost=(), until=99) -> Study:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        study = Study(tmp_path / "home", plan_words("sweep", str(file)), tmp_path / "store")
        while (run := study.next()) is not None and run.number < until:
            config = run.spec.config
            where = config["algorithm.tau"], config["data.root"].rpartition("/")[2]
            run.status = "finished"
            if where in lost:
                run.reason = "it diverged"
            else:
                write(run, numbers(where, run.spec.seed))
            study.settle(run)
        return study

    return play


def write(run, numbers):
    result = result_of(run.spec, [(1.0, 1.0)] * 3)
    for done in result.rounds:
        found = dict(zip(NAMES, numbers, strict=True)) if done.round == 2 else {}
        done.metrics.update({**dict.fromkeys(NAMES, 1.0), **found})
    metrics = tuple(Metric(name) for name in NAMES)
    object.__setattr__(result.info, "metrics", metrics)
    RunFolder(run.folder).write(result)


def better_second_seed(where, seed):
    return [value + 0.1 * seed for value in MEASURED[where]]


def test_seeds_are_averaged_and_their_spread_is_kept(play):
    trial = sweep_outcome(play(better_second_seed)).trials[0]
    assert trial.objective == pytest.approx(0.75)
    assert trial.std == pytest.approx(0.1 / 2**0.5)
    assert (trial.mean("accuracy_base"), trial.best_rounds) == (pytest.approx(0.45), [2, 2])
    assert (trial.when, trial.bytes) == ("2", 120)


def test_means_by_hand(play):
    found = sweep_outcome(play(better_second_seed))
    first, second = found.rows
    assert first.config == {"algorithm.tau": 1}
    assert first.values["accuracy_cm"].mean == pytest.approx((0.7 + 0.45) / 2 + 0.05)
    local = 0.85
    assert first.values["local_accuracy"].mean == pytest.approx(local)
    seeds = [(0.3, 0.4), (0.4, 0.5)]  # base and novel of each seed, means over the data sets
    hm = sum(2 * base * novel / (base + novel) for base, novel in seeds) / 2
    assert first.values["hm_of_means"].mean == pytest.approx(hm, abs=1e-12)
    assert first.values["cm_of_means"].mean == pytest.approx((local + hm) / 2)
    assert second.values["accuracy_cm"].mean == pytest.approx(0.5)
    assert found.best_row == first
    assert found.best.number == 0


def test_of_means_are_means_over_seeds_of_each_seeds_own(play):
    """Seeds whose base and novel accuracies lie crosswise: HM is 0.533, not 0.6."""
    crosswise = {0: (0.5, 0.8, 0.4, 0.5), 1: (0.5, 0.4, 0.8, 0.5)}
    (first, _) = sweep_outcome(play(lambda _, seed: crosswise[seed])).rows
    assert first.values[HM].mean == pytest.approx(0.8 * 2 / 3)


def test_a_configuration_that_lacks_a_data_set_is_not_the_best(play):
    found = sweep_outcome(play(better_second_seed, lost=[(1, "flowers")]))
    first, second = found.rows
    assert first.missing == ["root=flowers"]
    assert found.best_row == second
    lost = [(1, "flowers"), (2, "flowers")]
    assert sweep_outcome(play(better_second_seed, lost=lost)).best is None


def test_a_trial_that_is_not_over_has_no_part_in_a_mean(play):
    found = sweep_outcome(play(better_second_seed, until=3))
    assert [trial.status for trial in found.trials][:2] == ["finished", "pending"]
    assert found.rows[0].missing == ["root=flowers"]


def test_metrics_without_a_mean_are_those_of_the_trials(file, play):
    file.write_text(SWEEP.replace("mean_over: data.root\n", ""))
    found = sweep_outcome(play(better_second_seed))
    assert [row.config for row in found.rows] == [trial.config for trial in found.trials]
    assert found.rows[3].values["accuracy_novel"].mean == pytest.approx(0.35)
    assert found.best.number == 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("mean_over: data.root", "mean_over: data.rot", r"must be one of several keys"),
        ("  algorithm.tau: {grid: [1, 2]}\n", "", r"must be one of several keys"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(file, before, after, message):
    file.write_text(SWEEP.replace(before, after))
    with pytest.raises(UserError, match=message):
        plan_words("sweep", str(file))


def test_swept_values_are_shown_whole():
    values = ["openclip model=ViT-B-32 pretrained=a", "openclip model=ViT-B-32 pretrained=b"]
    lines = [
        TrialLine(number, {"text.encoder": value}, "", None, None, None, "1", 0.0, 0.0, False)
        for number, value in enumerate(values)
    ]
    section = trials_section(lines, ["text.encoder"], Metric("local_accuracy"), validates=False)
    assert [row[1] for row in section.rows] == values
