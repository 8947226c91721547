"""`fedray check` finds tests that are not isolated, and server states that lose entries."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.core import algorithms
from fedray.core.algorithm import SERVER_STEPS
from fedray.errors import ServerError
from fedray.evaluation.testing import TESTS
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.conformance import (
    Violation,
    Watch,
    check_dropout,
    check_state_entries,
    small_experiment,
)


def traces(experiment):
    return Watch().trace(Assembly(experiment))


@pytest.mark.parametrize("method", ["local", "fedproto", "fedetf"])
def test_dropout_in_tests_that_are_not_isolated_is_found(monkeypatch, method):
    experiment = small_experiment(method)
    check_dropout(experiment)
    isolated = ClientRuntime._isolated

    def only_steps(self, name, client, round_=0):
        return nullcontext() if name in TESTS else isolated(self, name, client, round_)

    monkeypatch.setattr(ClientRuntime, "_isolated", only_steps)
    with pytest.raises(Violation):
        check_dropout(experiment)


@pytest.mark.parametrize("method", [FedAvg, FedProto])
def test_states_that_are_not_merged_are_found(monkeypatch, method):
    experiment = small_experiment(method.name)
    expected = traces(experiment)
    check_state_entries(experiment, expected)
    monkeypatch.setattr("fedray.core.algorithm._merging", lambda step: step)
    for kind in method.__mro__:
        for step in SERVER_STEPS:
            if hasattr(vars(kind).get(step), "__wrapped__"):
                monkeypatch.setattr(kind, step, vars(kind)[step].__wrapped__)
    with pytest.raises(Violation, match="has lost the entry"):
        check_state_entries(experiment, expected)


def test_a_method_that_minds_another_entry_is_found(monkeypatch):
    algorithms.names()
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))

    @algorithms.add
    class Counting(FedAvg):
        name = "counting"

        def downlink(self, state, clients, server):
            (model,) = state.values()
            return super().downlink({"model": model}, clients, server)

    experiment = small_experiment("counting")
    with pytest.raises(ServerError):
        check_state_entries(experiment, traces(experiment))
