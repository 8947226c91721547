"""Heads that are fine-tuned after the last round: measured, never kept."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray import core
from fedray.base.errors import ClientError
from fedray.core import algorithms
from fedray.evaluation import testing

ONE_KIND = {"model.group": "cnn2", "rounds": 2, "participation": 0.5}


def test_it_is_measured_after_the_last_round_and_changes_nothing(run):
    plain = run("fedavg", ONE_KIND)
    tuned = run("fedavg", {**ONE_KIND, "finetune_epochs": 3})
    for round_, state in enumerate(plain.servers):
        assert same(tuned.servers[round_]["model"], state["model"])
    assert [r.per_client for r in plain.results] == [r.per_client for r in tuned.results]
    assert [r.up for r in plain.results] == [r.up for r in tuned.results]
    assert "finetuned_accuracy" not in tuned.results[1].metrics
    last = tuned.results[-1].metrics
    assert last["finetuned_accuracy_best"] >= last["finetuned_accuracy"]


def test_it_trains_the_head_alone(run, monkeypatch):
    before, after = {}, {}
    fit = core.fit

    def watched(local, loss):
        client = local.client
        before.setdefault(client.id, client.save(local.model))
        trained = fit(local, loss)
        after[client.id] = client.save(local.model)
        return trained

    monkeypatch.setattr(core, "fit", watched)
    run("fedavg", {**ONE_KIND, "finetune_epochs": 2})
    assert set(before) == {0, 1, 2, 3}
    for client, weights in before.items():
        changed = {n for n, t in weights.items() if not torch.equal(t, after[client][n])}
        assert changed == {"head.weight", "head.bias"}


def test_a_personal_model_starts_from_itself(run):
    done = run("local", {"rounds": 1, "finetune_epochs": 1, "lr": 1e-12})
    last = done.results[-1].metrics
    assert last["finetuned_accuracy"] == pytest.approx(last["local_accuracy"])


@pytest.mark.parametrize("name", [n for n in algorithms.names() if algorithms.get(n).requires.head])
def test_every_method_with_a_head_can_be_fine_tuned(run, name):
    changes = {"model.group": "cnn2", "rounds": 1, "finetune_epochs": 1}
    last = run(name, changes).results[-1].metrics
    assert 0 <= last["finetuned_accuracy"] <= last["finetuned_accuracy_best"] <= 1


def test_a_client_that_fails_ends_the_run(run, monkeypatch):
    def broken(algorithm, local):
        if local.client.id == 2:
            raise ArithmeticError("no such thing")
        yield from fine_tune_head(algorithm, local)

    fine_tune_head = testing.fine_tune_head
    monkeypatch.setattr(testing, "fine_tune_head", broken)
    with pytest.raises(ClientError, match=r"client 2.*finetune.*no such thing"):
        run("fedavg", {**ONE_KIND, "finetune_epochs": 1})
