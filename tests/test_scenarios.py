"""Whole runs under changing data and joining groups of classes, and what is measured of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from lab import refused

from fedray.base.errors import UserError
from fedray.base.streams import Streams
from fedray.data.evolution import federate_phases
from fedray.data.imageset import ImageSet
from fedray.evaluation.answers import within_top
from fedray.models import Pixels
from fedray.runtime.compatibility import check_data
from fedray.storage.metric import VALIDATION

EVOLVING = {"data.evolution.phases": [{"round": 2, "partition": {"alpha": 50}}], "rounds": 3}
GROUPS = {
    "data.clients": 5,
    "data.samples": 600,
    "data.partition": {"name": "class_groups", "classes": [8, 2], "clients": [4, 1]},
    "join.clients": 1,
    "join.round": 2,
    "rounds": 3,
}


def held(data, client):
    return sorted(np.unique(data.images.labels[data.train[client]]).tolist())


def test_until_the_data_changes_a_run_is_the_one_without(run):
    plain, evolving = run("fedproto", {"rounds": 3}), run("fedproto", EVOLVING)
    assert plain.results[1].metrics == evolving.results[1].metrics
    assert plain.results[2].metrics["train_loss"] != evolving.results[2].metrics["train_loss"]


@pytest.mark.parametrize("method", ["local", "fedavg", "fedtsp", "fedproto"])
def test_every_round_trains_on_its_phase(run, method):
    done = run(method, {**EVOLVING, "model.group": "cnn2"})
    before, after = done.assembly.data, done.assembly.data.at(2)
    if method == "fedproto":
        sent = [round_.up.params["prototypes"] / 16 for round_ in done.results[1:]]
        classes = [sum(len(held(data, c)) for c in range(4)) for data in (before, after, after)]
        assert sent == classes
    for round_, data in ((1, before), (2, after), (3, after)):
        shares = done.results[round_].per_client
        for client, share in shares.items():
            right = share * len(data.test[client])
            assert right == pytest.approx(round(right), abs=1e-6)


def test_new_classes_come_with_new_clients(run):
    done = run("fedtsp", {**GROUPS, "algorithm.lambda": 1, "algorithm.tau": 0.1})
    data = done.assembly.data
    assert held(data, 4) == [8, 9]
    assert set().union(*(held(data, c) for c in range(4))) == set(range(8))
    assert done.servers[1]["present"].tolist() == [True] * 8 + [False] * 2
    assert done.servers[2]["present"].tolist() == [True] * 10
    untouched = done.servers[0]["prompts"][8:]
    assert torch.equal(done.servers[1]["prompts"][8:], untouched), "no gradient before they join"
    assert not torch.equal(done.servers[2]["prompts"][8:], untouched)


def test_who_joins_gets_what_others_were_sent_before(run):
    done = run("alignfed", {**GROUPS, "algorithm.target_steps": 10, "faults.drop": 0.5})
    assert done.servers[0]["given"]["keep_targets"].tolist() == [0] * 4 + [-1]
    whole = run("alignfed", {**GROUPS, "algorithm.target_steps": 10})
    assert whole.servers[-1]["given"]["keep_targets"].tolist() == [0] * 5
    assert torch.equal(whole.memories[4]["targets"], whole.memories[0]["targets"])


def test_the_clients_that_were_there_before_are_measured_for_themselves(run):
    for result in run("fedproto", GROUPS).results:
        earlier = [result.per_client[c] for c in range(4)]
        assert result.metrics["earlier_accuracy"] == pytest.approx(np.mean(earlier))
        assert result.metrics["new_accuracy"] == result.per_client[4]
        joined = earlier if result.round < 2 else [*earlier, result.per_client[4]]
        assert result.metrics["local_accuracy"] == pytest.approx(np.mean(joined))
    assert "earlier_accuracy" not in run("local").results[-1].metrics


# --- what is measured -----------------------------------------------------------------------------


def test_top_k_is_scikit_learns():
    from sklearn.metrics import top_k_accuracy_score

    logits = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 6
    for k in (2, 3, 5):
        expected = top_k_accuracy_score(labels, logits, k=k, normalize=False, labels=range(6))
        assert int(within_top(logits, labels, k).sum()) == expected
    tied = torch.zeros(4, 4)
    assert within_top(tied, torch.arange(4), 2).tolist() == [True, True, False, False]
    assert within_top(logits, labels, 6).all()


def test_every_model_on_everybodys_test(run):
    done = run("local", {"evaluation.global_test": True, "evaluation.top_k": 2, "rounds": 1})
    assembly, last = done.assembly, done.results[-1].metrics
    every = np.concatenate(assembly.data.test)
    images = Pixels.of(torch.from_numpy(assembly.data.images.images[every]))
    labels = torch.from_numpy(assembly.data.images.labels[every])
    found, among = [], []
    for client, weights in done.models.items():
        model = assembly.models.empty(assembly.models.architectures[client])
        model.load_state_dict(dict(weights))
        with torch.no_grad():
            logits = model.eval()(images).logits
        found.append(float((logits.argmax(1) == labels).float().mean()))
        among.append(float((logits.topk(2).indices == labels[:, None]).any(1).float().mean()))
    assert last["global_test_accuracy"] == pytest.approx(np.mean(found))
    assert last["global_test_accuracy_std"] == pytest.approx(np.std(found))
    assert last["global_test_accuracy_top2"] == pytest.approx(np.mean(among))
    plain = run("local", {"rounds": 1}).results[-1].metrics
    assert {name: last[name] for name in plain} == plain, "nothing else changes"
    assert last["local_accuracy"] <= last["local_accuracy_top2"] <= 1


def test_one_global_model_has_its_accuracy_on_everybodys_test(run):
    changes = {"evaluation.global_test": True, "data.validation_fraction": 0.25}
    last = run("fedavg", {**changes, "model.group": "cnn2", "rounds": 1}).results[-1].metrics
    for on in ("", VALIDATION):
        assert last[f"{on}global_test_accuracy"] == pytest.approx(last[f"{on}global_accuracy"])
    assert last["global_accuracy"] != last["validation/global_accuracy"]
    assert last["global_test_accuracy_std"] == pytest.approx(0, abs=1e-7)


def test_more_candidates_than_classes_are_refused(assemble):
    with pytest.raises(
        UserError, match=r"evaluation\.top_k=10 with 10 classes counts every prediction"
    ):
        _ = assemble("local", {"evaluation.top_k": 10}).data


def test_a_single_class_is_refused(assemble):
    experiment = assemble("local", {"data.samples": 40, "data.partition": "iid"}).experiment
    pixels = np.zeros((40, 1, 8, 8), np.uint8)
    one = ImageSet("made", pixels, np.zeros(40, np.int64), ("cat",), np.zeros(40, np.int8))
    refused(
        lambda: check_data(experiment, federate_phases(one, experiment.data, Streams(0).numpy)),
        "cat",
    )


# --- what is written ------------------------------------------------------------------------------


def test_a_partition_of_several_phases_can_be_written(assemble):
    for changes in ({}, EVOLVING, GROUPS):
        assert json.dumps(assemble("local", changes).data.manifest())
