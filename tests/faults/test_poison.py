"""Replies that are not what they should be, in short; all of them: `benchmarks.faults poison`."""

from __future__ import annotations

import pytest

from benchmarks.faults import poison
from benchmarks.faults.poisons import HARMLESS, POISONS

pytestmark = pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
FEW = [
    "weights: one entry",
    "weights: int64",
    "weights: huge",
    "samples: -50",
    "state: bfloat16",
    "raises: SystemExit",
    "raises: without words",
]


@pytest.fixture(autouse=True)
def poisoned_methods(monkeypatch):
    """This process knows the poisoned methods."""
    poison.algorithms.names()  # all are read: what is read later would be forgotten again
    monkeypatch.setattr(poison.algorithms, "_entries", dict(poison.algorithms._entries))
    poison.register()
    yield
    poison.reference.cache_clear()


def test_there_are_at_least_eighty_kinds():
    assert len({name for poisons in POISONS.values() for name in poisons}) >= 80


@pytest.mark.slow
@pytest.mark.parametrize("method", POISONS)
def test_a_poisoned_reply_is_its_client_s_failure_and_reaches_nobody(method):
    harmless = HARMLESS if method == "fedavg" else {}
    wrong = {name: poison.judge(method, name, "drop", poison.serial) for name in POISONS[method]}
    wrong |= {name: poison.judge(method, name, "stop", poison.serial) for name in harmless}
    assert {name: what for name, what in wrong.items() if what} == {}


@pytest.mark.parametrize("name", [*FEW, "loss: NaN", "report: a string"])
def test_a_poisoned_reply_stops_a_run_with_one_sentence(name):
    assert poison.judge("fedavg", name, "stop", poison.serial) == ""


@pytest.mark.ray
@pytest.mark.long
def test_on_workers_it_is_the_same():
    with poison.on_two_workers() as on_ray:
        for policy in ("stop", "drop"):
            for name in FEW:
                assert poison.judge("fedavg", name, policy, on_ray) == "", (name, policy)
