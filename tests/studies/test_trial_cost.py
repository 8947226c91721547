"""Which trial takes longer, before either has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.runtime.resolve import resolve
from fedray.sweep.cost import Costs, round_seconds
from fedray.studies.study import Ledger, Trial
from fedray.studies.space import grid, plan_sweep


def seconds(*words: str) -> float:
    """The estimate for a small experiment with these keys."""
    return round_seconds(resolve("fedproto_digits", ["data.samples=400", *words]))


@pytest.mark.parametrize(
    "more", ["local_epochs=9", "batch_size=4", "model.group=cnn3", "participation=1.0"]
)
def test_what_takes_longer_is_said_to(more):
    few = ["participation=0.5"] if more.startswith("participation") else []
    assert seconds(more) > seconds(*few)


def test_what_trains_texts_at_the_server_takes_longer_by_its_epochs():
    plan = plan_sweep("fedtsp_server_epochs", ["text.encoder=random"], "laptop", None)
    costs, trials = (
        Costs(Ledger(Path(), plan)),
        [Trial(i, c) for i, c in enumerate(grid(plan.axes))],
    )
    estimates = [costs.round(trial) for trial in trials]
    assert estimates == sorted(estimates)
    assert estimates[0] < estimates[-1]
    assert [t.number for t in costs.in_order(trials)][:3] == [4, 0, 3]


def test_equal_trials_stay_in_order():
    plan = plan_sweep("fedproto_lambda", [], "laptop", None)
    trials = [Trial(i, config) for i, config in enumerate(grid(plan.axes))]
    assert Costs(Ledger(Path(), plan)).in_order(trials) == trials


def test_a_trial_that_cannot_be_looked_at_counts_as_the_others():
    plan = plan_sweep("fedproto_lambda", ["data.clients=4000"], "laptop", None)
    assert Costs(Ledger(Path(), plan)).round(Trial(0, grid(plan.axes)[0])) == len(plan.seeds)
