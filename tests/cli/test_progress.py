"""The time that is left: steady, and without what the first round costs alone."""

from __future__ import annotations

from fedray.cli.progress import Pace


def test_the_first_round_does_not_count():
    pace = Pace(10)
    times = {0: 0.0, 1: 60.0, 2: 65.0, 3: 70.0, 4: 75.0}
    found = [pace.left(done, now) for done, now in times.items()]
    assert found == [None, None, 40.0, 35.0, 30.0]


def test_a_run_that_goes_on_begins_with_its_first_round_here():
    pace = Pace(10)
    assert [pace.left(done, now) for done, now in ((6, 0.0), (7, 9.0), (9, 13.0))][-1] == 2.0
