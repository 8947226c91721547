"""How long a table still takes, while its cells go from tuning to reports."""

from __future__ import annotations

import pytest
from pretended_runs import end

from fedray.sweep.watch import SweepProgress
from fedray.studies.study import Study
from fedray.studies.file import plan_words

ROUND = 10.0
"""Seconds of a round, and of a start."""


def test_reports_that_wait_count_in_the_time_that_is_left(here, write):
    write(report={"seeds": [0, 1, 2, 3]})
    now = [0.0]
    book = Study(here / "out", plan_words("table", "tiny"), here / "runs")
    show = SweepProgress(book, 1, clock=lambda: now[0])
    said = []
    while (trial := book.next()) is not None:
        show.begin(trial)
        for round_ in range(3):
            now[0] += ROUND
            trial.last_round = round_
            trial.objective = 0.5
            show.round(trial)
        end(book, trial, lambda wanted: [(0.0, 0.0), (0.5, 0.5), (0.5, 0.5)])
        show.end(trial)
        left = sum(not each.is_over for each in list(book.runs.values()))
        if book.total == len(book.runs):  # no more is suggested
            said.append((show.left(), 3 * ROUND * left))
    assert len(said) > 4
    assert said[-1] == (0.0, 0.0)
    for estimate, truth in said:
        assert estimate == pytest.approx(truth, rel=0.05)
