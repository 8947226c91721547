"""The state that a server step returns is merged into the state before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensors import CPU

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.distillation.feddistill import FedDistill
from fedray.algorithms.personalised.fedgh import FedGH
from fedray.algorithms.prototypes.fedpcl import FedPCL
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.algorithms.prototypes.fedtgp import FedTGP
from fedray.base.errors import ServerError
from fedray.core import Algorithm, Total, algorithms, gift, sent

SMALL: dict[str, Any] = {"model.group": "mlp", "rounds": 2}
NEW = {"entry": torch.ones(2)}


@pytest.fixture
def run_method(run, monkeypatch):
    """Run a class of a method under a name that only this test knows."""
    algorithms.names()  # loads the shipped ones, which must stay
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))

    def run_method(method: type[Algorithm], **changes: Any):
        method.name = "merging"
        algorithms.add(method)
        return run("merging", {**SMALL, **changes})

    return run_method


@pytest.mark.parametrize("parent", [FedAvg, FedProto, FedTGP, FedPCL, FedGH, FedDistill])
def test_a_gift_of_a_subclass_is_sent_once(run_method, parent):
    class Giving(parent):
        keep_gift = gift(gift=sent("text_embeddings", "", "C d"))

        def give(self, state, exchange):
            state = super().give(state, exchange)
            kept = torch.ones(self.setting.num_classes, self.setting.feature_dim)
            down = dict.fromkeys(exchange.everyone, self.keep_gift.down(kept))
            return exchange.give(state, "keep_gift", down)

    found = [r.down.bytes.get("text_embeddings", 0) for r in run_method(Giving).results]
    assert found[0] > 0
    assert found[1:] == [0, 0]


def test_a_declared_gift_is_the_entry_of_its_name(run_method):
    class Giving(InitialEntry):
        keep_entry = gift(entry=sent("text_embeddings", "", "n"))

    done = run_method(Giving, participation=0.5)
    found = [r.down.bytes.get("text_embeddings", 0) for r in done.results]
    assert found == [4 * 2 * 4, 0, 0]
    assert all(torch.equal(memory["entry"], NEW["entry"]) for memory in done.memories.values())


@pytest.mark.parametrize("name", ["fedavg", "feddistill", "fedpac", "fedtgp"])
def test_a_round_without_uploads_keeps_the_state(assemble, name):
    assembly = assemble(name, {"model.group": "mlp"})
    server, method = assembly.server(CPU), assembly.algorithm
    silent = {"call": lambda *_: {}, "total": lambda *_: Total()}
    exchange = SimpleNamespace(server=server, participants=range(4), everyone=range(4), **silent)
    state = method.init_server(server)
    after = method.round(state, exchange)
    assert all(after[entry] is state[entry] for entry in state)


class InitialEntry(FedAvg):
    def init_server(self, server):
        return {**super().init_server(server), **NEW}


class FreshUpdate(InitialEntry):
    def server_update(self, state, uplinks, server):
        return {"model": next(iter(uplinks.values())).model}


class FreshPrepare(InitialEntry):
    def prepare(self, state, exchange):
        return {"other": torch.zeros(1)}


class FreshGive(InitialEntry):
    def give(self, state, exchange):
        return {}


class FreshRound(InitialEntry):
    def round(self, state, exchange):
        return {"model": super().round(state, exchange)["model"]}


@pytest.mark.parametrize("method", [FreshUpdate, FreshPrepare, FreshGive, FreshRound])
def test_an_entry_that_a_step_does_not_name_stays(run_method, method):
    for state in run_method(method).servers:
        assert torch.equal(state["entry"], NEW["entry"])


def test_versions_of_a_round_stay_when_the_next_step_does_not_name_them(run_method):
    class GivingInside(FedAvg):
        keep_gift = gift(gift=sent("text_embeddings", "", "C d"))

        def round(self, state, exchange):
            kept = torch.ones(self.setting.num_classes, self.setting.feature_dim)
            down = dict.fromkeys(exchange.everyone, self.keep_gift.down(kept))
            state = exchange.give(state, "keep_gift", down)
            return super().round(state, exchange)

        def server_update(self, state, uplinks, server):
            return {"model": state["model"]}

    found = [r.down.bytes.get("text_embeddings", 0) for r in run_method(GivingInside).results]
    assert found[1] > 0
    assert found[2] == 0


def test_an_entry_is_emptied_by_name(run_method):
    class Emptying(InitialEntry):
        def init_server(self, server):
            return {**super().init_server(server), "seen": NEW}

        def server_update(self, state, uplinks, server):
            return {**super().server_update(state, uplinks, server), "seen": {}}

    assert [len(state["seen"]) for state in run_method(Emptying).servers] == [1, 0, 0]


def test_a_step_that_returns_no_state_is_named(run_method):
    class Forgetting(FedAvg):
        def server_update(self, state, uplinks, server):
            super().server_update(state, uplinks, server)

    with pytest.raises(ServerError, match="NoneType"):
        run_method(Forgetting)
