"""FedConcat's clusters and concatenation by hand, its stages, and who has what when."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensors import CPU, same

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.fedconcat import (
    BIAS,
    WEIGHT,
    FedConcat,
    assign,
    cluster,
    concatenate_heads,
)
from fedray.core import held_versions
from fedray.models import Pixels
from fedray.runtime.groups import GroupRunner, Member

ONE_KIND = {"model.group": "cnn3"}


def draws(seed=0):
    return np.random.default_rng(seed)


# --- clusters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_alike_clients_meet_in_a_cluster(seed):
    points = np.array([[1.0, 0.0], [0.1, 0.9], [0.9, 0.1], [0.0, 1.0], [0.95, 0.05]])
    assert cluster(points, 2, 5, draws(seed)).tolist() == [0, 1, 0, 1, 0]
    assert cluster(points, 1, 5, draws(seed)).tolist() == [0] * 5
    assert cluster(points, 5, 5, draws(seed)).tolist() == [0, 1, 2, 3, 4]


def test_assignment_by_hand():
    costs = np.array([[0.0, 9.0], [1.0, 3.0], [2.0, 2.5]])
    assert assign(costs, 3).tolist() == [0, 0, 1]  # all are nearest to 0, but 1 may not be empty
    assert assign(np.array([[0.0, 9.0], [1.0, 3.0], [5.0, 0.0]]), 3).tolist() == [0, 0, 1]
    four = np.vstack([costs, [0.5, 2.0]])  # two must go: 0.5 + 1.5 is the cheapest
    assert assign(four, 2).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_no_cluster_is_empty_or_too_large(seed):
    points = np.concatenate([np.zeros((7, 3)), draws(seed).random((3, 3))])
    sizes = np.bincount(cluster(points, 4, 3, draws(seed)), minlength=4)
    assert sizes.sum() == 10
    assert sizes.min() >= 1
    assert sizes.max() <= 3


def test_clients_say_how_their_images_spread(assemble):
    assembly = assemble("fedconcat", ONE_KIND)
    client = GroupRunner(assembly, CPU).client(1, 0)
    answer, _ = assembly.algorithm.label_distribution(client, None, None)
    counts = torch.bincount(client.train.labels, minlength=10).double()
    assert torch.equal(answer["shares"], counts / counts.sum())


# --- concatenation --------------------------------------------------------------------------------


def test_the_concatenated_heads_logits_are_the_sum_of_the_clusters():
    one = {WEIGHT: torch.tensor([[1.0, 2.0]]), BIAS: torch.tensor([0.5])}
    two = {WEIGHT: torch.tensor([[3.0, -1.0]]), BIAS: torch.tensor([0.25])}
    weight, bias = concatenate_heads([one, two])
    assert weight.tolist() == [[1.0, 2.0, 3.0, -1.0]]
    assert bias.tolist() == [0.75]
    features = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 5.0]])
    found = F.linear(torch.cat(features, dim=1), weight, bias)
    assert found.item() == 3.5 + 1.25


def test_inside_a_cluster_it_is_fedavg_of_its_clients(run):
    done = run("fedconcat", {**ONE_KIND, "algorithm.cluster_rounds": 2})
    assignment = done.servers[-1]["assignment"].tolist()
    members = [client for client, g in enumerate(assignment) if g == 1]
    assert 0 < len(members) < 4
    uplinks = {}
    runtime = GroupRunner(done.assembly, CPU)
    for client in members:
        member = Member(client, None, FedAvg.down(done.servers[1]["clusters"]["1"]))
        uplinks[client] = runtime.run_group("client_update", 2, [member])[0][0].uplink
    total = sum(upload.samples for upload in uplinks.values())
    mean = sum(u.model["head.weight"] * (u.samples / total) for u in uplinks.values())
    torch.testing.assert_close(done.servers[2]["clusters"]["1"][WEIGHT], mean)


# --- stages ---------------------------------------------------------------------------------------


@pytest.fixture
def done(run):
    """Five rounds: two in clusters, three of the classifier."""
    changes = {**ONE_KIND, "rounds": 5, "algorithm.cluster_rounds": 2, "batch_size": 8}
    return run("fedconcat", changes)


def test_encoders_are_frozen_after_the_clusters_rounds_and_the_classifier_moves(done):
    for before, after in pairwise(done.servers[:3]):
        for g, model in before["clusters"].items():
            weights = [name for name in model if name.endswith("weight")]
            assert not any(torch.equal(model[n], after["clusters"][g][n]) for n in weights)
    for state in done.servers[3:]:
        assert set(state["clusters"]) == {"0", "1"}
        for g, model in state["clusters"].items():
            assert same(model, done.servers[2]["clusters"][g])
    assert "head" not in done.servers[2]
    heads = [state["head"][WEIGHT] for state in done.servers[3:]]
    assert heads[0].shape == (10, 2 * 16)
    assert not torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2])


def test_encoders_travel_once_and_then_classifiers_alone(done):
    from fedray.models import buffer_names

    names = buffer_names(done.assembly.server(CPU).model)
    model = done.servers[0]["clusters"]["0"]
    buffers = sum(model[name].numel() for name in names)
    whole = sum(t.numel() for t in model.values()) - buffers
    encoder, small = whole - 17 * 10, (2 * 16 + 1) * 10
    assert done.results[0].up.params == {"statistics": 4 * 10}
    assert done.results[1].up.params == {"weights": 4 * whole, "statistics": 4 * (buffers + 1)}
    assert done.results[1].down.params == {"weights": 4 * whole, "statistics": 4 * buffers}
    assert done.results[3].down.params == {
        "weights": 4 * (2 * encoder + small),
        "statistics": 4 * 2 * buffers,
    }
    assert done.results[4].down.params == {"weights": 4 * small}
    for result in done.results[3:]:
        assert result.up.params["weights"] == 4 * small
    assert all(model == {} for model in done.models.values())
    for memory in done.memories.values():
        assert set(memory) == {"encoders"}


def test_the_score_is_that_of_the_concatenated_model(done):
    runtime, state = GroupRunner(done.assembly, CPU), done.servers[-1]
    client = runtime.client(0, 5)
    tested = done.assembly.data.at(5).test[0]
    images, labels = done.assembly.models.samples(CPU)(tested).tensors(CPU)
    features = [
        client.load(state["clusters"][g]).eval()(Pixels.of(images)).features.detach()
        for g in ("0", "1")
    ]
    head = state["head"]
    guesses = F.linear(torch.cat(features, dim=1), head[WEIGHT], head[BIAS]).argmax(1)
    assert done.results[-1].per_client[0] == int((guesses == labels).sum()) / len(labels)


def test_a_global_accuracy_is_there_from_the_classifier_on(done):
    has = ["global_accuracy" in result.metrics for result in done.results]
    assert has == [False, False, False, True, True, True]


def test_a_round_of_the_classifier_by_hand(done):
    """Three batches of eight from each client, plain SGD, and the unweighted mean."""
    streams, state = done.assembly.streams, done.servers[3]["head"]
    heads = []
    for client in range(4):
        context = GroupRunner(done.assembly, CPU).client(client, 4)
        images, labels = context.train.tensors(CPU)
        features = torch.cat(
            [
                context.load(model).eval()(Pixels.of(images)).features.detach()
                for model in done.servers[2]["clusters"].values()
            ],
            dim=1,
        )
        drawn = torch.randperm(
            len(labels), generator=streams.torch("head_batches", round_=4, client=client)
        )[:24]
        order = torch.randperm(
            len(drawn), generator=streams.torch("batches", round_=4, client=client)
        )
        head = torch.nn.Linear(32, 10)
        head.load_state_dict({"weight": state[WEIGHT], "bias": state[BIAS]})
        sgd = torch.optim.SGD(head.parameters(), 0.05)
        batches = drawn[order].split(8)
        assert len(batches) == 3
        for index in batches:
            sgd.zero_grad()
            F.cross_entropy(head(features[index]), labels[index]).backward()
            sgd.step()
        heads.append(head.weight.detach())
    torch.testing.assert_close(done.servers[4]["head"][WEIGHT], torch.stack(heads).mean(0))


def test_the_batches_of_the_classifier_are_augmented(run):
    changes = {**ONE_KIND, "algorithm.cluster_rounds": 1, "finetune_epochs": 1}
    plain, done = (
        run("fedconcat", changes),
        run("fedconcat", {**changes, "data.augment": "flip_crop"}),
    )
    heads = [each.servers[-1]["head"][WEIGHT] for each in (plain, done)]
    assert not torch.equal(*heads)
    assert 0 <= done.results[-1].metrics["finetuned_accuracy"] <= 1


def test_whoever_the_encoders_have_not_reached_gets_them_later(run):
    changes = {
        **ONE_KIND,
        "rounds": 6,
        "algorithm.cluster_rounds": 1,
        "faults.drop": 0.6,
        "data.clients": 4,
    }
    done = run("fedconcat", changes)
    holds = [held_versions(s, "keep_encoders", done.assembly.setting) == 0 for s in done.servers]
    reached = [int(each.sum()) for each in holds]
    assert reached[1] == 0
    assert 0 < reached[2] < 4  # some were away; they have their cluster's model until then
    assert reached == sorted(reached)
    assert reached[-1] == 4
    away = [c for c in range(4) if not holds[2][c]]
    algorithm = done.assembly.algorithm
    down = algorithm.downlink(done.servers[2], range(4), done.assembly.server(CPU))
    assert [c for c in range(4) if down[c].fields is not FedConcat.train_head.down] == away
