"""How long a study still takes, while its cells go from tuning to reports."""

from __future__ import annotations

import pytest
from commands import plan_words
from pretended_runs import end

from fedray.studies.progress import Progress
from fedray.studies.study import Study

ROUND = 10.0
"""Seconds of a round, and of a start."""


@pytest.mark.parametrize("concurrent", [1, 2])
def test_reports_that_wait_count_in_the_time_that_is_left(here, write, concurrent):
    write(report={"seeds": [0, 1, 2, 3]})
    now = [0.0]
    study = Study(here / "out", plan_words("table", "tiny"), here / "store")
    show = Progress(study, concurrent, clock=lambda: now[0])
    said = []
    while (run := study.ask()) is not None:
        show.begin(run)
        for round_ in range(3):
            now[0] += ROUND
            run.last_round = round_
            show.round(run)
        end(study, run, lambda wanted: [(0.0, 0.0), (0.5, 0.5), (0.5, 0.5)])
        show.end(run)
        left = sum(not each.is_over for each in study.runs.values())
        if study.total == len(study.runs):  # no more is suggested
            said.append((show.remaining_seconds(), 3 * ROUND * left / concurrent))
    assert len(said) > 4
    assert said[-1] == (0.0, 0.0)
    for estimate, truth in said:
        assert estimate == pytest.approx(truth, rel=0.05)


def test_a_run_that_is_longer_counts_by_its_rounds_and_epochs(here, write):
    write(set={"local_epochs": 2}, tuning={"rounds": 1})
    study = Study(here / "out", plan_words("table", "tiny"), here / "store")
    run = study.ask()
    assert run.cost == 2
    now = [0.0]
    show = Progress(study, 1, clock=lambda: now[0])
    assert show.remaining_seconds() is None
    show.begin(run)
    now[0] += 6.0
    end(study, run, lambda wanted: [(0.0, 0.0), (0.5, 0.5)])
    show.end(run)
    left = sum(each.cost for each in study.runs.values() if not each.is_over)
    unknown = study.total - len(study.runs)
    usual = sum(each.cost for each in study.runs.values()) / len(study.runs)
    assert show.remaining_seconds() == pytest.approx(3.0 * (left + unknown * usual))
