"""Clients that share a model are tested in one pass, with the scores that each has by itself."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from answers import run_tests

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import ClientError
from fedray.core import algorithms, is_tested_together
from fedray.runtime import groups, shares
from fedray.runtime.groups import GroupRunner
from fedray.runtime.shares import groups_of_test

CPU = torch.device("cpu")
WITH_ONE_MODEL = [method.name for method in algorithms.entries() if method.one_model]
SHORT = {
    "model.group": "cnn2",
    "rounds": 2,
    "participation": 0.5,
    "eval_every": 1,
    "data.validation_fraction": 0.2,
}


def one_by_one(self, name, round_, groups, first):
    """`_test`, each client in a pass of its own."""
    return [part for c in chain(*groups) for part in together(self, name, round_, [[c]], first)]


together = GroupRunner._test


@pytest.mark.parametrize("method", WITH_ONE_MODEL)
def test_the_scores_are_those_of_each_client_by_itself(run, monkeypatch, method):
    changes = SHORT if method != "fedconcat" else {**SHORT, "rounds": 6}
    if algorithms.get(method).requires.prompts:
        changes = {key: value for key, value in changes.items() if key != "model.group"}
    in_one_pass = run(method, changes)
    monkeypatch.setattr(GroupRunner, "_test", one_by_one)
    singly = run(method, changes)
    assert [r.metrics for r in in_one_pass.results] == [r.metrics for r in singly.results]
    assert [r.per_client for r in in_one_pass.results] == [r.per_client for r in singly.results]


def test_a_model_is_tested_once_on_what_all_clients_share(run, monkeypatch):
    calls = []
    monkeypatch.setattr(
        GroupRunner, "_test", lambda self, *args: calls.append(args[2]) or together(self, *args)
    )
    changes = {"model.group": "mlp", "rounds": 1, "evaluation.global_test": True}
    done = run("fedavg", changes)
    assert "global_test_accuracy" in done.results[-1].metrics
    assert calls == [([0, 1, 2, 3],)] * 2


def assembly(method, images, eval_sets=()):
    """As much of an assembly as groups of a test depend on."""
    data = SimpleNamespace(test=[range(n) for n in images], eval_sets=eval_sets)
    return SimpleNamespace(
        algorithm=object.__new__(algorithms.get(method)),
        data=SimpleNamespace(at=lambda _: data),
        models=SimpleNamespace(architectures=["mlp"] * len(images)),
    )


def test_a_group_has_one_download_and_so_many_images(monkeypatch):
    monkeypatch.setattr(shares, "TESTED_TOGETHER", 10)
    a, b = object(), object()
    down = {5: a, 0: a, 1: b, 2: a, 3: a, 4: b}
    few = assembly("fedavg", [6, 4, 4, 12, 5, 1])
    assert groups_of_test(few, "evaluate", 1, down) == [[0, 2], [3], [5], [1, 4]]
    assert groups_of_test(few, "finetune", 1, down) == [(client,) for client in range(6)]
    personal = assembly("fedbn", [1] * 6)
    assert groups_of_test(personal, "evaluate", 1, down) == [(client,) for client in range(6)]
    with_sets = assembly("fedavg", [6, 4, 4, 12, 5, 1], {"domain": ()})
    assert groups_of_test(with_sets, "evaluate", 1, down) == [[0, 2, 3, 5], [1, 4]]


def test_a_pass_that_fails_names_the_client_whose_test_fails(assemble, monkeypatch):
    made = assemble("fedavg", {"model.group": "mlp"})
    runtime, server, splits_of = GroupRunner(made, CPU), made.server(CPU), groups.splits_of
    down = made.algorithm.downlink(made.algorithm.init_server(server), [0], server)[0]

    def broken(data, groups, samples):
        if 2 in chain(*groups):
            raise ArithmeticError("no such image")
        return splits_of(data, groups, samples)

    monkeypatch.setattr(groups, "splits_of", broken)
    with pytest.raises(ClientError, match=r"^client 2, round 1, step evaluate: .*no such image"):
        run_tests(runtime, [0, 1], [2, 3], down=down)


def test_a_class_that_keeps_a_part_of_the_model_is_tested_client_by_client():
    class KeepsHeads(FedAvg):
        name = "keeps_heads"

        def shared(self, model):
            return [name for name in super().shared(model) if not name.startswith("head.")]

    class AddsALoss(FedAvg):
        name = "adds_a_loss"

        def loss(self, output, batch, local):
            return 2 * super().loss(output, batch, local)

    class Clustered(FedAvg):
        name = "clustered"

        def downlink(self, state, clients, server):
            return {client: super().downlink(state, [client], server)[client] for client in clients}

    assert not KeepsHeads.one_model
    assert not Clustered.one_model
    assert AddsALoss.one_model


@pytest.mark.parametrize(("method", "together"), [("fedprox", True), ("fedetf", False)])
def test_clients_with_gifts_are_tested_by_themselves(assemble, method, together):
    assert algorithms.get(method).one_model
    assert is_tested_together(assemble(method).algorithm) == together
