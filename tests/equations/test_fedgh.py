"""FedGH by hand: mean features, and the head that the server trains on them."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from tensors import CPU, same

from fedray.algorithms.personalised.fedgh import header_loss
from fedray.algorithms.prototypes.class_prototypes import ClassFeatures

HEAD = {"weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]), "bias": torch.tensor([0.0, 0.5])}
VECTORS = torch.tensor([[2.0, 1.0], [0.0, 3.0]])


def test_the_headers_loss_by_hand():
    # logits (2, 1.5) of class 0 and (0, 3.5) of class 1
    expected = (log(1 + exp(-0.5)) + log(1 + exp(-3.5))) / 2
    assert float(header_loss(HEAD, (VECTORS, torch.tensor([0, 1])))) == pytest.approx(expected)


def uploads(*classes: int, seed: int = 0) -> ClassFeatures:
    vectors = torch.randn(len(classes), 16, generator=torch.Generator().manual_seed(seed))
    return ClassFeatures(torch.tensor(classes), vectors)


def test_the_server_takes_batches_of_the_clients_size(assemble):
    def head(**changes):
        assembly = assemble("fedgh", changes)
        method, server = assembly.algorithm, assembly.server(CPU)
        uplinks = {0: uploads(1, 4), 2: uploads(4, 5, 6, seed=1)}
        return method.server_update(method.init_server(server), uplinks, server)["head"]

    batches = {size: head(**{"algorithm.server_batch_size": size}) for size in (2, 4, 100)}
    assert same(head(batch_size=2), batches[2])
    assert same(head(batch_size=4), batches[4])
    assert not same(batches[2], batches[100])
