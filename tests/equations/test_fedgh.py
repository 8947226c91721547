"""FedGH: the batches that its server takes."""

from __future__ import annotations

import torch
from tensors import CPU, same

from fedray.algorithms.personalised.fedgh import FedGH


def uploads(*classes: int, seed: int = 0) -> FedGH.up:
    vectors = torch.randn(len(classes), 16, generator=torch.Generator().manual_seed(seed))
    return FedGH.up(torch.tensor(classes), vectors)


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
