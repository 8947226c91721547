"""FedFA's anchors by hand, and a whole run against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import ReferenceClient, initial_model
from tensors import seeded

from fedray.algorithms.averaging.fedfa_anchors import (
    FedFAAnchors,
    initial_anchors,
    moved_anchors,
)
from fedray.core import row_means
from fedray.models import Pixels

ONE_KIND = {"model.group": "cnn2"}


def test_initial_anchors_are_distinct_unit_vectors():
    few = initial_anchors(4, 6, seeded())
    assert torch.equal(few @ few.T, torch.eye(4))
    assert set(few.flatten().tolist()) == {0.0, 1.0}
    assert not torch.equal(few, initial_anchors(4, 6, seeded(1)))
    many = initial_anchors(6, 4, seeded())
    torch.testing.assert_close(many.norm(dim=1), torch.ones(6))
    assert len({tuple(row) for row in many.tolist()}) == 6


def test_local_anchors_by_hand():
    start = torch.tensor([[1.0, 1.0], [0.0, 2.0], [7.0, 7.0]])

    def batch(*rows, labels):
        return row_means(torch.tensor(rows), torch.tensor(labels), 3)

    first = batch([2.0, 4.0], [4.0, 8.0], [0.0, 2.0], labels=[0, 0, 1])
    once = moved_anchors(start, [first, batch([4.0, 2.0], labels=[1])], 0.5)
    expected = torch.tensor([[1.25, 2.0], [1.0, 2.0], [7.0, 7.0]])
    torch.testing.assert_close(once, expected)
    twice = moved_anchors(once, [batch([1.0, 3.0], labels=[2])] * 4, 0.5)
    torch.testing.assert_close(twice[2], torch.tensor([4.0, 5.0]))
    assert torch.equal(twice[:2], once[:2])
    assert torch.equal(start[2], torch.tensor([7.0, 7.0]))  # what was sent stays as it was


def test_the_server_averages_anchors_with_the_shares_of_the_weights(assemble):
    algorithm = assemble("fedfa_anchors", ONE_KIND).algorithm
    anchors = torch.tensor([[0.1, 0.7], [1.0, 1.0]])
    state = {"model": {"w": torch.zeros(1)}, "anchors": anchors}
    uplinks = {
        client: FedFAAnchors.up({"w": torch.tensor([w])}, samples, torch.tensor(anchors))
        for client, w, samples, anchors in [
            (0, 4.0, 30, [[0.1, 0.7], [5.0, 1.0]]),
            (3, 8.0, 10, [[0.1, 0.7], [1.0, 9.0]]),
        ]
    }
    after = algorithm.server_update(state, uplinks, None)
    assert after["model"]["w"].tolist() == [5.0]
    torch.testing.assert_close(after["anchors"][1], torch.tensor([4.0, 3.0]))
    assert torch.equal(after["anchors"][0], state["anchors"][0])


def test_anchors_of_classes_that_nobody_has_never_move(run, assemble):
    data = assemble("fedavg", ONE_KIND).data
    labels = data.images.labels
    without = tuple(indices[~np.isin(labels[indices], (3, 8))] for indices in data.train)
    done = run("fedfa_anchors", {**ONE_KIND, "rounds": 3}, replace(data, train=without))
    first, last = done.servers[0]["anchors"], done.servers[-1]["anchors"]
    still = [c for c in range(10) if torch.equal(first[c], last[c])]
    assert still == [3, 8]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_one_client_is_the_algorithm_written_out(run, precision):
    """In bfloat16 calibrations are steps in float32 that the next batch sees."""
    changes = {
        **ONE_KIND,
        "data.clients": 1,
        "data.samples": 150,
        "local_epochs": 2,
        "algorithm.lambda": 0.7,
        "algorithm.calibration_lr": 0.01,
        "algorithm.anchor_momentum": 0.3,
        "precision": precision,
    }
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
    done = run("fedfa_anchors", changes)
    client, model = ReferenceClient(done.assembly), initial_model(done.assembly, "cnn2")
    anchors = done.servers[0]["anchors"].clone()
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    for round_ in (1, 2):
        adam = torch.optim.Adam(model.head.parameters(), 0.01)
        batches = list(client.batches(round_, epochs=2))
        parts, moved = len(batches) // 2, anchors.clone()
        for epoch in (batches[:parts], batches[parts:]):
            means: list[list[torch.Tensor]] = [[] for _ in range(10)]
            for x, y in epoch:
                held = y.unique().tolist()
                with autocast:
                    output = model(Pixels(x))
                    features, loss = output.features.float(), F.cross_entropy(output.logits, y)
                pull = sum((features[y == c] - anchors[c]).square().sum(1).mean() for c in held)
                for c in held:
                    means[c].append(features[y == c].mean(0).detach())
                sgd.zero_grad()
                (loss + 0.7 * pull / 10).backward()
                sgd.step()
                adam.zero_grad()
                F.cross_entropy(model.head(anchors), torch.arange(10)).backward()
                adam.step()
            for c, found in enumerate(means):
                if found:
                    mean = torch.stack(found).sum(0) / parts
                    moved[c] = 0.3 * moved[c] + 0.7 * mean
        anchors = moved
    first, last = done.servers[0], done.servers[-1]
    pairs = [
        (last["model"][name], w, first["model"][name]) for name, w in model.state_dict().items()
    ]
    for found, expected, start in [*pairs, (last["anchors"], anchors, first["anchors"])]:
        rtol, atol = 1e-4, 1e-5
        if precision == "bfloat16":  # each step's gradient is off by at most its rounding
            rtol, atol = 0, torch.finfo(torch.bfloat16).eps * float((expected - start).abs().max())
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
