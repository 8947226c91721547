"""FedMD: Algorithm 1 as a straight loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import THREE, ReferenceClients

FEW = {"algorithm.public_epochs": 1, "algorithm.private_epochs": 1}


def batches(images, targets, stream, size):
    """The batches of an epoch in the order of a run; a single last image joins the batch before."""
    chunks = list(torch.randperm(len(images), generator=stream).split(size))
    if len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return [(images[chunk], targets[chunk]) for chunk in chunks]


@pytest.mark.parametrize("digest", ["l1", "kl"])
def test_algorithm_1_as_a_straight_loop(run, digest):
    keys = {"algorithm.alignment": 20, "algorithm.digest_batch_size": 8, "algorithm.temperature": 3}
    done = run("fedmd", {**THREE, **FEW, **keys, "algorithm.digest": digest, "local_epochs": 1})
    straight, data = ReferenceClients(done), done.assembly.data
    public = data.public.index
    images = torch.from_numpy(data.images.images[public]).float() * (2 / 255) - 1
    labels = torch.from_numpy(data.images.labels[public])

    def scores(k, x):
        return straight.heads[k](straight.bodies[k](x))

    def epoch(k, order, round_, x, y, size, loss):
        sgd = torch.optim.SGD(straight.parameters(k), 0.05)
        stream = straight.streams.torch(order, round_=round_, client=k)
        for inputs, targets in batches(x, y, stream, size):
            sgd.zero_grad()
            loss(scores(k, inputs), targets).backward()
            sgd.step()

    def distance(found, wanted):
        if digest == "l1":
            return (found - wanted).abs().mean()
        p, q = F.softmax(wanted / 3, 1), F.log_softmax(found / 3, 1)
        return 9 * (p * (p.log() - q)).sum(1).mean()

    own = [(client.images, client.labels) for client in straight.clients]
    for k in range(3):
        epoch(k, "public", 0, images, labels, 16, F.cross_entropy)
        epoch(k, "private", 0, *own[k], 16, F.cross_entropy)
    for round_ in (1, 2):
        drawn = straight.streams.numpy("fedmd", round_=round_).permutation(len(public))[:20]
        aligned = images[torch.from_numpy(drawn)]
        with torch.no_grad():
            mean = sum(scores(k, aligned) for k in range(3)) / 3
        for k in range(3):
            epoch(k, "digest", round_, aligned, mean, 8, distance)
            epoch(k, "batches", round_, *own[k], 16, F.cross_entropy)
    straight.assert_same(done)


def test_a_client_that_joins_later_begins_with_transfer_learning(run):
    done = run("fedmd", {**FEW, "join.clients": 1, "join.round": 2, "rounds": 2})
    given = [server["given"]["transfer"].tolist() for server in done.servers]
    assert given == [[0, 0, 0, -1], [0, 0, 0, -1], [0, 0, 0, 0]]


def test_scores_of_public_images_are_all_that_travels(run):
    done = run("fedmd", {**FEW, "algorithm.alignment": 7})
    assert done.results[1].up.params == {"logits": 4 * 7 * 10, "statistics": 4}
    assert done.results[1].down.params == {"logits": 4 * 7 * 10, "statistics": 4}
    assert np.isfinite(done.results[-1].metrics["local_accuracy"])
