"""What a sweep came to: one frame, means over seeds, how sure the best one is; by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pandas
import pytest
from commands import plan_words
from pretended_runs import result_of
from sweeps import write_sweep
from written_runs import write_whole

from fedray.results.numbers import COLUMNS
from fedray.storage.metric import Metric, find_metric
from fedray.studies.pages import write_sweep as write_pages
from fedray.studies.plan import known_metrics
from fedray.studies.study import Study, StudyRun
from fedray.studies.trials import SweepOutcome, trials_section


@pytest.fixture
def play(here):
    """`play(values, space=...)` has the configurations of a grid come to these numbers.

    Args:
        values: for each configuration the numbers of its seeds, of the metrics of the sweep; in
            place of a number None: the run fails; "pending": it does not begin.
        changes: keys of the sweep.
    """

    def play(values, **changes) -> SweepOutcome:
        metrics = changes.get("metrics", ["local_accuracy"])
        report = {"select": "test", "seeds": list(range(len(values[0])))}
        write_sweep(**{"at": "final", "report": report, **changes})
        plan = plan_words("sweep", "tiny")
        study = Study(here / "home", plan, here / "store")
        study.home.mkdir(exist_ok=True)
        for config, of_config in zip(plan.configurations("all"), values, strict=True):
            for seed, value in zip(plan.report.seeds, of_config, strict=True):
                spec = plan.run(plan.places[0], config, "tuning", seed)
                if value == "pending":
                    continue
                study.runs[spec.key] = StudyRun(spec)
                if value is not None:
                    write(spec, study.folder(spec.key), metrics, value)
                study.tell(spec, "" if value is not None else "it broke")
        return SweepOutcome(study)

    return play


def write(spec, folder: Path, metrics, value) -> None:
    """Write a run whose last round has a value of each metric; in round 1, which does not count,
    each is 1."""
    result = result_of(spec, [(1.0, 1.0)] * 3)
    values = value if isinstance(value, tuple) else (value,) * len(metrics)
    for done in result.rounds:
        done.metrics.update(zip(metrics, values if done.round == 2 else (1.0,) * 9, strict=False))
    declared = tuple(find_metric(name, known_metrics()) or Metric(name) for name in metrics)
    object.__setattr__(result.info, "metrics", declared)
    write_whole(folder, result)


GRID = {"lr": {"grid": [0.1, 0.2]}}
NAMES = ["accuracy_cm", "local_accuracy"]


def test_a_sweep_is_a_frame_as_a_table_is_with_the_swept_keys(play):
    found = play([[(0.7, 0.9), (0.8, 1.0)], [(0.5, 0.5), None]], space=GRID, metrics=NAMES)
    frame = found.numbers.frame
    assert tuple(frame.columns) == (*COLUMNS, "lr")
    first = frame[(frame["row"] == "0") & (frame["metric"] == "accuracy_cm")]
    assert first["value"].tolist() == pytest.approx([70, 80])  # in per cent
    assert first[["seed", "round", "bytes", "lr"]].values.tolist() == [
        [0, 2, 120, 0.1],
        [1, 2, 120, 0.1],
    ]
    by_lr = frame.groupby(["lr", "metric"])["value"].mean()
    assert by_lr[0.1, "local_accuracy"] == pytest.approx(95)
    lost = frame[(frame["row"] == "1") & (frame["seed"] == 1)]
    assert lost["status"].tolist() == ["it broke"] * 2
    assert lost["value"].isna().all()
    chooser, shown = found.metrics
    assert found.interval("0", chooser).mean == pytest.approx(75)
    assert found.interval("0", shown).values == pytest.approx((90, 100))
    assert found.interval("1", chooser) is None, "a seed is missing"
    write_pages(found.study)
    read = pandas.read_csv(found.study.home / "trials.csv")
    assert read["value"].tolist() == pytest.approx(frame["value"].tolist(), nan_ok=True)


def test_the_table_has_a_line_for_each_configuration(play):
    values = [[(0.7, 0.1), (0.8, 0.2)], [(0.9, 0.5), None], [(0.1, 0.1), "pending"]]
    found = play(values, space={"lr": {"grid": [0.1, 0.2, 0.4]}}, metrics=NAMES)
    section = trials_section(found)
    assert section.header[:4] == ["trial", "lr", "acc. cm", "local acc."]
    assert section.rows[0] == [
        "* 0", "0.1", "75.0 (70.0–80.0)", "15.0 (10.0–20.0)", "2", "3.0 s, 120 B"
    ]  # fmt: skip
    assert [row[2] for row in section.rows[1:]] == ["failed", "not finished"]
    assert section.items == ["trial 1 failed: it broke"]
    assert (found.best, list(found.tried)) == ("0", ["0"])


def test_below_four_seeds_the_spread_is_the_range_and_from_four_on_an_interval(play):
    values = [0.62, 0.80, 0.70, 0.71]
    for seeds in (2, 3, 4):
        found = play([values[:seeds]], space={"lr": {"grid": [0.1]}})
        interval = found.interval("0", found.chooser)
        assert interval.mean == pytest.approx(100 * sum(values[:seeds]) / seeds)
        ends = (62, 80) if seeds < 4 else (interval.low, interval.high)
        assert interval.spread == pytest.approx(ends)
        cell = {2: "71.0 (62.0–80.0)", 4: "70.8 ± 11.7"}.get(seeds)
        assert cell is None or trials_section(found).rows[0][2] == cell


@pytest.mark.parametrize(
    ("numbers", "notes"),
    [
        ([(0.9, 0.7), (0.7, 0.7), (0.6, 0.8), (0.1, 0.1)], ["2 other"]),
        ([(0.9, 0.8), (0.7, 0.9), (0.6, 0.8), (0.1, 0.1)], ["1 other"]),
        ([(0.9, 0.9), (0.7, 0.9), (0.6, 0.8), (0.1, 0.1)], ["no other"]),
        (
            [(0.9,), (0.9,), (0.6,), (0.1,)],
            ["each configuration ran with one seed", "trial(s) 1 tie"],
        ),
        (
            [(0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.4, 0.4)],
            ["no other", "the best lies at an edge: lr"],
        ),
        ([(0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (None, 0.9)], ["no other"]),  # it was tried
        ([(0.9, 0.9), (0.7, 0.9), (0.6, 0.8), (0.1, "pending")], []),
        ([(None,), (None,), (None,), (None,)], []),
    ],
)
def test_how_sure_the_best_configuration_is(play, numbers, notes):
    found = play(numbers, space={"lr": {"grid": [0.2, 0.1, 0.4, 0.8]}})
    assert len(found.notes) == len(notes)
    assert all(said.startswith(note) for said, note in zip(found.notes, notes, strict=True))


def test_the_best_is_the_lowest_where_less_is_better(play):
    found = play([[3.0], [2.0]], space=GRID, metrics=["train_loss"])
    assert found.best == "1"
    assert found.interval("1", found.chooser).mean == 2.0, "a loss is no share"
    assert math.isnan(found.interval("1", found.chooser).half)
