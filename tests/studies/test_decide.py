"""`fedray decide`: seeds are added to the rows of the cheapest undecided claim."""

from __future__ import annotations

import pytest
from pretended_runs import pretend
from sweeps import asked

from fedray.errors import UserError
from fedray.studies import decide as module
from fedray.studies.decide import decide_claims, next_step
from fedray.studies.flow import Request
from fedray.studies.outcome import outcome
from fedray.studies.plan import Place

ROWS = {
    "mine": {"algorithm": "fedproto"},
    "near": {"algorithm": "fedavg"},
    "far": {"algorithm": "fedprox"},
}
TABLE = {
    "rows": ROWS,
    "baselines": [],
    "report": {"seeds": [0, 1, 2]},
    "claims": ["mine > near", "mine > far"],
}
NOISE = [0.3, 0.9, 0.1, 0.6, 0.4, 0.8, 0.2, 0.7, 0.5, 0.35, 0.65, 0.45, 0.55, 0.25, 0.75, 0.15]


def curve(wanted):
    gain = {"mine": 0.1, "near": 0.0, "far": -0.3}[wanted.place.row]
    value = 0.5 + gain + NOISE[wanted.seed % 16] / 10 * (wanted.place.row == "mine")
    return [(0.0, 0.0), (value, value / 2)]


@pytest.fixture
def carried(monkeypatch, write):
    """The studies that were carried out, with pretended runs."""
    write(**TABLE)
    done = []

    def carry_out(request: Request):
        study = asked(["tiny", *(f"{key}={value}" for key, value in request.pairs)])
        pretend(study, curve)
        done.append(study)
        return study, 0

    monkeypatch.setattr(module, "carry_out", carry_out)
    return done


def test_seeds_are_added_to_the_claims_rows_until_it_is_decided(carried, capsys):
    assert decide_claims(Request("table", "tiny"), hours=1) == 0
    last = carried[-1]
    assert len(carried) > 1
    assert all(each.verdict == "holds" for each in outcome(last).claims)
    assert "0 of 2 claims are undecided" in capsys.readouterr().out
    assert outcome(last).looks.count("anytime") == 1


def test_a_row_has_its_further_seeds_and_those_of_rows_that_it_tunes_for(write):
    rows = ROWS | {"far": {"algorithm": "fedprox", "tuned_as": "mine", "control": "that it helps"}}
    write(**TABLE | {"rows": rows, "claims": ["mine > near"]})
    study = asked(["tiny", "report.more={far: [7], near: [8]}"])
    assert [study.plan.seeds_of(row) for row in rows] == [[0, 1, 2, 7], [0, 1, 2, 8], [0, 1, 2, 7]]
    pretend(study, curve)
    cells = outcome(study).cells
    column = study.plan.places[0].column
    assert [each.seed for each in cells[Place("far", column)].seeds] == [0, 1, 2, 7]
    assert study.is_complete


def test_no_step_is_begun_that_takes_longer_than_what_is_left(carried):
    study, _ = module.carry_out(Request("table", "tiny", [("test", "anytime")]))
    found = outcome(study)
    step = next_step(study, found, 1e9)
    assert step is not None
    assert next_step(study, found, step.seconds / 2) is None
    few = next_step(study, found, 1.5 * step.seconds)
    assert few is not None
    assert len(few.seeds) == 1


def test_further_seeds_of_a_row_that_is_not_there_are_refused(write):
    write(**TABLE)
    with pytest.raises(UserError, match=r"report\.more: there is no row 'nera'.*near"):
        asked(["tiny", "report.more={nera: [7]}"])
