"""FedProto's equations by hand, and the properties that follow from them."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from reference import mean_by_class
from tensors import CPU

from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing
from fedray.algorithms.prototypes.fedproto import FedProto, prototype_loss
from fedray.models import ClassifierOutput

FEATURES = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
LABELS = torch.tensor([0, 1])
OUTPUT = ClassifierOutput(FEATURES, torch.zeros(2, 2))
"""Two classes, undecided: the cross-entropy is ln 2."""


def prototypes(*present: bool) -> FedProto.down:
    return FedProto.down(torch.tensor([[0.0, 0.0], [3.0, 2.0]]), torch.tensor(present))


def test_eq6_weighs_by_samples_of_the_class():
    uplinks = {
        0: PrototypeSharing.up(
            torch.tensor([0, 1]), torch.tensor([[1.0, 0], [4, 4]]), torch.tensor([3, 5])
        ),
        1: PrototypeSharing.up(torch.tensor([0]), torch.tensor([[0.0, 8]]), torch.tensor([1])),
    }
    found, present = mean_by_class(uplinks, 3, "weighted")
    assert found.tolist() == [[0.75, 2.0], [4.0, 4.0], [0.0, 0.0]]
    assert present.tolist() == [True, True, False]
    assert mean_by_class(uplinks, 3, "uniform")[0][0].tolist() == [0.5, 4.0]


def test_eq7_by_hand():
    # squared distances: 1 + 4 and 0 + 4, over B*d = 4 entries
    found = prototype_loss(OUTPUT, LABELS, prototypes(True, True), 2.0)
    assert float(found) == pytest.approx(log(2) + 2 * 9 / 4)


def test_a_missing_class_is_no_penalty_rather_than_a_pull_to_zero():
    output = ClassifierOutput(FEATURES.clone().requires_grad_(), OUTPUT.logits)
    loss = prototype_loss(output, LABELS, prototypes(False, True), 1.0)
    assert loss.item() == pytest.approx(log(2) + 4 / 4)
    (gradient,) = torch.autograd.grad(loss, output.features)
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 2 * 2 / 4]]
    without = prototype_loss(OUTPUT, LABELS, prototypes(False, False), 2.0)
    assert float(without) == pytest.approx(log(2))


def test_a_class_that_nobody_uploads_keeps_its_prototype(assemble):
    assembly = assemble("fedproto")
    method, server = assembly.algorithm, assembly.server(CPU)
    first = PrototypeSharing.up(torch.tensor([1, 2]), torch.ones(2, 16), torch.tensor([3, 3]))
    second = PrototypeSharing.up(torch.tensor([2]), torch.zeros(1, 16), torch.tensor([3]))
    state = method.server_update(method.init_server(server), {0: first}, server)
    state = method.server_update(state, {1: second}, server)
    assert np.flatnonzero(state["present"]).tolist() == [1, 2]
    assert state["vectors"][1].tolist() == [1.0] * 16
    assert state["vectors"][2].tolist() == [0.0] * 16
