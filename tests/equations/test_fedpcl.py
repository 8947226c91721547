"""FedPCL's contrast by hand, and who has whose prototypes when."""

from __future__ import annotations

from math import exp, inf, log

import pytest
import torch

from fedray.algorithms.prototypes.fedpcl import PrototypeSets, prototype_contrast
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ClassifierOutput, Pixels

ALL = torch.tensor([True, True])


def test_the_contrast_by_hand():
    z, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    sets = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 1.0]]])
    one, two = (log(1 + exp(-cosine / 0.5)) for cosine in (1.0, 0.5))
    assert prototype_contrast(z, y, sets[:1], ALL, 0.5).item() == pytest.approx(one)
    assert prototype_contrast(z, y, sets, ALL, 0.5).item() == pytest.approx((one + two) / 2)


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


def test_the_loss_is_both_contrasts_of_unit_features(assemble):
    method = assemble("fedpcl", {"algorithm.tau": 0.5}).algorithm
    output = ClassifierOutput(torch.tensor([[5.0, 0.0]]), torch.zeros(1, 2))
    local = torch.tensor([[0.5, 0.0], [0.0, 1.0]])
    down = PrototypeSets(torch.eye(2), ALL, torch.stack([torch.eye(2), local]))
    batch = Batch(Pixels(torch.zeros(1)), torch.tensor([0]))
    loss = method.loss(output, batch, LocalContext(None, None, ClientState({}), down))
    one, two = (log(1 + exp(-cosine / 0.5)) for cosine in (1.0, 0.5))
    assert loss.item() == pytest.approx(one + (one + two) / 2)


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
