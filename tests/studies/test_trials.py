"""What a sweep came to: means over seeds, by hand."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pandas
import pytest
from commands import plan_words
from pretended_runs import result_of
from written_runs import write_whole

from fedray.storage.metric import Metric
from fedray.studies.pages import best_line, best_test, trials_section, write_pages
from fedray.studies.study import Study, StudyRun
from fedray.studies.trials import SweepOutcome, sweep_outcome

SWEEP = """\
answers: "a question"
space:
  algorithm.tau: {grid: [1, 2]}
  data.root: {grid: [pets, flowers]}
metrics: [accuracy_cm, local_accuracy, accuracy_base, accuracy_novel]
report: {select: test}
at: final
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
        while len(study.runs) < until and (run := study.ask()) is not None:
            study.runs[run.key] = StudyRun(run)
            config = run.config
            where = config["algorithm.tau"], config["data.root"].rpartition("/")[2]
            if where in lost:
                study.tell(run, "it diverged")
            else:
                write(run, study.folder(run.key), numbers(where, run.seed))
                study.tell(run)
        return study

    return play


def write(run, folder, numbers):
    result = result_of(run, [(1.0, 1.0)] * 3)
    for done in result.rounds:
        found = dict(zip(NAMES, numbers, strict=True)) if done.round == 2 else {}
        done.metrics.update({**dict.fromkeys(NAMES, 1.0), **found})
    metrics = tuple(Metric(name) for name in NAMES)
    object.__setattr__(result.info, "metrics", metrics)
    write_whole(folder, result)


def better_second_seed(where, seed):
    return [value + 0.1 * seed for value in MEASURED[where]]


def test_seeds_are_averaged_and_their_spread_is_kept(play):
    found = sweep_outcome(play(better_second_seed))
    trial = found.trials.loc[0]
    assert trial["objective"] == pytest.approx(0.75)
    assert trial["std"] == pytest.approx(0.1 / 2**0.5)
    assert trial["accuracy_base"] == pytest.approx(0.45)
    assert (trial["round"], trial["bytes"]) == ("2", 120)
    runs = found.runs[found.runs["trial"] == 0]
    assert runs[["seed", "round"]].values.tolist() == [[0, 2], [1, 2]]
    assert runs["accuracy_base"].tolist() == pytest.approx([0.4, 0.5])
    by_tau = found.runs.groupby("algorithm.tau")["choice"].mean()  # as in any frame
    assert by_tau.to_dict() == pytest.approx({1: 0.625, 2: 0.5})


def test_a_trial_that_is_not_over_has_no_mean(play):
    found = sweep_outcome(play(better_second_seed, lost=[(2, "pets")], until=5))
    assert found.trials["status"].tolist() == ["finished", "finished", "failed", "pending"]
    assert [n for n, interval in found.intervals().items() if interval is None] == [2, 3]
    assert (found.best, len(found.ended)) == (0, 2)


def test_a_trial_that_lacks_a_seed_has_no_spread_round_or_traffic(tmp_path):
    numbers = [({"lr": 0.1}, [0.5, 0.7, None]), ({"lr": 0.2}, [0.5, 0.6, 0.7])]
    found = ended(tmp_path, "{lr: {grid: [0.1, 0.2]}}", numbers, status="failed")
    found.runs.loc[found.runs["choice"].isna(), ["round", "bytes"]] = math.nan
    lost, whole = found.trials.to_dict("records")
    assert (lost["status"], lost["round"], whole["round"]) == ("failed", "", "1")
    assert math.isnan(lost["std"])
    assert math.isnan(lost["bytes"])
    assert (whole["std"], whole["bytes"]) == (pytest.approx(0.1), 0)
    assert trials_section(found).rows[0][-1] == ""


@pytest.mark.parametrize(("images", "value"), [("test", 0.5), ("train", None)])
def test_only_a_metric_of_test_images_is_called_a_test(tmp_path, images, value):
    found = ended(tmp_path, "{lr: {grid: [0.1]}}", [({"lr": 0.1}, [0.5])])
    found = replace(found, metrics={"local_accuracy": Metric("local_accuracy", on=images)})
    assert best_test(found) == value
    assert ("on the test" in best_line(found)) == (images == "test")


def test_a_configuration_is_a_line_with_all_metrics(play):
    study = play(better_second_seed)
    study.home.mkdir()
    [trials] = write_pages(study)
    assert [row[2] for row in trials.rows] == ["pets", "flowers"] * 2
    assert trials.header[3:7] == ["acc. cm", "local acc.", "acc. base", "acc. novel"]
    assert trials.rows[3][5] == "15.0 (10.0–20.0)"
    assert trials.below[0].endswith("accuracy novel (%), mean and range of 2 seeds.")


# --- how sure the best one is ---------------------------------------------------------------------


def ended(tmp_path, space, numbers, search="", status="finished") -> SweepOutcome:
    """A sweep over `space` whose configurations came to these objectives, one for each seed."""
    path = tmp_path / "mine.yaml"
    seeds = list(range(len(numbers[0][1])))
    path.write_text(
        f"answers: a question\nspace: {space}\ntuning: {{{search}}}\n"
        f"scales: {{laptop: {{experiment: fedavg_digits, report: {{seeds: {seeds}}}}}}}\n"
    )
    rows = [
        {"trial": trial, "seed": seed, **config, "status": status if value is None else "finished",
         "reason": "", "seconds": 0.0, "round": 1.0, "choice": value, "score": value, "bytes": 0.0,
         "local_accuracy": value}
        for trial, (config, values) in enumerate(numbers)
        for seed, value in enumerate(values)
    ]  # fmt: skip
    configs = [config for config, _ in numbers]
    return SweepOutcome(plan_words("sweep", str(path)), configs, pandas.DataFrame(rows), {})


def test_below_four_seeds_the_spread_is_the_range_and_from_four_on_an_interval(tmp_path):
    values, sections = [0.62, 0.80, 0.70, 0.71], {}
    for seeds in (2, 3, 4):
        found = ended(tmp_path, "{lr: {grid: [0.1]}}", [({"lr": 0.1}, values[:seeds])])
        interval, sections[seeds] = found.intervals()[0], trials_section(found)
        assert interval.mean == pytest.approx(100 * sum(values[:seeds]) / seeds)
        if seeds < 4:
            assert interval.spread == (62, 80)
        else:
            assert interval.spread == pytest.approx((interval.low, interval.high))
    four, two = sections[4], sections[2]
    assert four.rows[0][:4] == ["* 0", "0.1", *["70.8 ± 11.7"] * 2]
    interval = "mean ± half of the 95 % t interval over 4 seeds."
    assert four.below == [f"validation/local accuracy (%), local accuracy (%), {interval}"]
    assert two.rows[0][2:4] == ["71.0 (62.0–80.0)"] * 2
    assert two.below[0].endswith("mean and range of 2 seeds.")


@pytest.mark.parametrize(
    ("numbers", "note"),
    [
        ([(0.9, 0.7), (0.7, 0.7), (0.6, 0.8), (0.1, 0.1)], "2 other configuration(s) lie within"),
        ([(0.9, 0.8), (0.7, 0.9), (0.6, 0.8), (0.1, 0.1)], "1 other configuration(s) lie within"),
        ([(0.9, 0.9), (0.7, 0.9), (0.6, 0.8), (0.1, 0.1)], "no other configuration(s) lie within"),
        ([(0.9,), (0.9,), (0.6,), (0.1,)], "each configuration ran with one seed"),
    ],
)
def test_configurations_within_the_spread_of_the_best_are_counted(tmp_path, numbers, note):
    configs = [{"lr": lr} for lr in (0.2, 0.1, 0.4, 0.8)]
    space = "{lr: {grid: [0.1, 0.2, 0.4, 0.8]}}"
    [first, *rest] = ended(tmp_path, space, [*zip(configs, numbers, strict=True)]).notes
    assert first.startswith(note)
    assert [line[:10] for line in rest] == (["trial(s) 1"] if len(numbers[0]) == 1 else [])


def test_a_best_at_the_end_of_its_axis_is_named(tmp_path):
    numbers = [({"lr": lr}, (lr, lr)) for lr in (0.1, 0.2, 0.4)]
    found = ended(tmp_path, "{lr: {grid: [0.1, 0.2, 0.4]}}", numbers)
    assert found.notes[1:] == ["the best lies at an edge: lr=0.4 is the highest that was tried"]


def test_a_value_whose_runs_failed_was_tried(tmp_path):
    numbers = [({"lr": lr}, (lr, lr)) for lr in (0.1, 0.2)] + [({"lr": 9.0}, (None, None))]
    found = ended(tmp_path, "{lr: {grid: [0.1, 0.2, 9.0]}}", numbers, status="failed")
    assert (found.best, found.notes[1:]) == (1, [])


@pytest.mark.parametrize(("status", "notes"), [("running", 0), ("failed", 0), ("finished", 1)])
def test_nothing_is_said_of_the_best_while_trials_are_missing(tmp_path, status, notes):
    last = 0.4 if status == "finished" else None
    numbers = [({"lr": 0.1}, (0.5, 0.6)), ({"lr": 0.2}, (0.4, last))]
    found = ended(tmp_path, "{lr: {choice: [0.1, 0.2]}}", numbers, status=status)
    assert (found.best, len(found.notes)) == (0, notes)
