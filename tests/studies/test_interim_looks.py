"""Looks at the verdicts, as the table's file states them."""

from __future__ import annotations

import pytest

from fedray.studies.outcome import outcome

ROWS = {"mine": {"algorithm": "fedproto"}, "base": {"algorithm": "fedavg"}}
CHANGES = {"rows": ROWS, "baselines": [], "claims": ["mine > base"]}


def curve(wanted):
    value = 0.5 + (wanted.place.row == "mine") / 10 + wanted.seed / 1000 - wanted.experiment.lr
    return [(0.0, 0.0), (value, value / 2)]


@pytest.mark.parametrize(
    ("looked_at", "fixed", "anytime", "notes"),
    [
        ([], 1, 1, []),
        (
            [[0], [0, 1]],
            3,
            1,
            [
                "The verdicts of seed 0 were known before seed 1 was added",
                "The verdicts of seeds 0, 1 were known before seeds 2, 3 were added",
            ],
        ),
        (
            [[3, 2, 1, 0]],
            2,
            2,
            ["The verdicts of seeds 3, 2, 1, 0 were known before the table was changed"],
        ),
    ],
)
def test_what_the_file_says_is_a_look(play, looked_at, fixed, anytime, notes):
    study = play(curve, **CHANGES, report={"seeds": [0, 1, 2, 3], "looked_at": looked_at})
    found, report = outcome(study), study.plan.report
    assert (report.looks("fixed"), report.looks("anytime")) == (fixed, anytime)
    assert found.plan.paired_test.looks == fixed
    assert [note for note in found.notes if note.startswith("The verdicts of")] == notes
    alone = outcome(play(curve, **CHANGES, report={"seeds": [0, 1, 2, 3]}))
    [with_looks], [without] = found.claims, alone.claims
    assert with_looks.p == pytest.approx(min(1, fixed * without.p))
