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
    study = Study(here / "out", plan_words("table", "tiny"), here / "store")
    show = Progress(study, concurrent)
    said = []
    while (run := study.ask()) is not None:
        end(study, run, lambda wanted: [(0.0, 0.0), (0.5, 0.5), (0.5, 0.5)])
        study.runs[run.key].seconds = 3 * ROUND
        show.end(study.runs[run.key])
        said.append((show.remaining_seconds(), 3 * ROUND * study.remaining / concurrent))
    assert len(said) > 4
    assert said[-1] == (0.0, 0.0)
    for estimate, truth in said:
        assert estimate == pytest.approx(truth, rel=0.05)
