"""Heads that are fine-tuned after the last round: measured, never kept."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray import core
from fedray.core import algorithms
from fedray.errors import ClientError
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


def test_a_client_that_fails_counts_in_no_mean_and_is_an_event(run, monkeypatch):
    accuracies, fine_tune_head, scores = {}, testing.fine_tune_head, testing.scores

    def broken(algorithm, local):
        if local.client.id == 2:
            raise ArithmeticError("no such thing")
        yield from fine_tune_head(algorithm, local)

    def recorded(algorithm, local, held_out):
        (tested,) = scores(algorithm, local, held_out)
        accuracies[local.client.id] = tested.accuracy
        return [tested]

    monkeypatch.setattr(testing, "fine_tune_head", broken)
    monkeypatch.setattr(testing, "scores", recorded)
    changes = {**ONE_KIND, "finetune_epochs": 1}
    last = run("fedavg", {**changes, "faults.on_client_error": "drop"}).results[-1]
    mean = sum(accuracies[client] for client in (0, 1, 3)) / 3
    assert last.metrics["finetuned_accuracy"] == pytest.approx(mean)
    assert [(event.client, event.what) for event in last.events] == [
        (2, "failed: ArithmeticError: no such thing")
    ]
    with pytest.raises(ClientError, match=r"client 2.*finetune.*no such thing"):
        run("fedavg", changes)
