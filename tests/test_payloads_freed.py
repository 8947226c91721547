"""What travelled in a round is gone when the round is over."""

from __future__ import annotations

import gc
import weakref

import pytest
from tensors import CPU

from fedray.core import Gate
from fedray.federation import Federation
from fedray.runtime.serial import SerialExecutor

CHANGES = {"rounds": 3, "participation": 0.75, "eval_every": 1, "model.group": "mlp"}


@pytest.fixture
def alive(monkeypatch, assemble):
    """`alive(method, changes)` gives, round by round, how many payloads are left."""
    made: list[weakref.ref] = []

    def noting(original):
        def passed(*args, **keywords):
            payload, traffic = original(*args, **keywords)
            made.append(weakref.ref(payload))
            return payload, traffic

        return passed

    for way in ("down", "up"):
        monkeypatch.setattr(Gate, way, noting(getattr(Gate, way)))

    def alive(method, changes):
        a = assemble(method, {**CHANGES, **changes})
        federation = Federation(a.algorithm, SerialExecutor(a, CPU), a.gate, a.plan, a.server(CPU))
        left = [sum(each() is not None for each in made) for _ in federation.rounds()]
        return left, len(made)

    gc.disable()  # a cycle would be freed some time, and memory is wanted now
    yield alive
    gc.enable()


@pytest.mark.parametrize(
    "method", ["fedavg", "scaffold", "fedproto", "fedtsp", "fedkd", "fedgen", "moon", "fedpac"]
)
def test_nothing_that_travelled_outlives_its_round(alive, method):
    found, made = alive(method, {})
    assert made > 3
    assert found == [0] * 4
