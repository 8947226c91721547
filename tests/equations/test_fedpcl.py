"""FedPCL where classes have no prototype, and its predictions."""

from __future__ import annotations

from math import exp, inf, log

import pytest
import torch

from fedray.algorithms.prototypes.fedpcl import prototype_contrast
from fedray.core import ClientState, LocalContext
from fedray.models import ClassifierOutput


def test_a_class_without_prototype_is_in_no_sum_and_its_images_count_as_zero():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    sets, present = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]), [True, True, False]
    loss = prototype_contrast(z, torch.tensor([0, 2]), sets, torch.tensor(present), 1.0)
    assert loss.item() == pytest.approx(log(1 + exp(-1)) / 2)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient[1].tolist() == [0.0, 0.0]
    assert gradient[0].abs().min() > 0
    none = prototype_contrast(z, torch.tensor([0, 2]), sets, torch.zeros(3, dtype=torch.bool), 1.0)
    assert none.item() == 0


def test_predictions_are_the_nearest_own_prototype(assemble):
    method = assemble("fedpcl").algorithm
    features = torch.tensor([[3.0, 4.0], [-2.0, 0.0]])
    output = ClassifierOutput(features, features)
    memory = {
        "vectors": torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.5]]),
        "present": torch.tensor([True, False, True]),
    }
    found = method.predict(output, LocalContext(None, None, ClientState({}, memory), None))
    torch.testing.assert_close(found, torch.tensor([[0.6, -inf, 0.4], [-1.0, -inf, 0.0]]))
    newcomer = LocalContext(None, None, ClientState({}), None)
    assert method.predict(output, newcomer).tolist() == [[0.0] * 10] * 2
