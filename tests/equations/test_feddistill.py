"""FedDistill by hand: mean outputs, teachers, the regulariser."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from tensors import CPU

from fedray.algorithms.distillation.feddistill import ClassOutputs, ClassSums, distillation_loss


def test_the_mean_output_of_every_label_by_hand():
    sums = ClassSums(3, CPU)
    sums.add(torch.tensor([[1.0, 2, 3], [5, 0, 0]]), torch.tensor([2, 0]))
    sums.add(torch.tensor([[3.0, 0, 1]]), torch.tensor([2]))
    classes, means = sums.means()
    assert classes.tolist() == [0, 2]
    assert means.tolist() == [[5.0, 0, 0], [2, 1, 2]]


def upload(**outputs: list[float]) -> ClassOutputs:
    classes = [int(name[1:]) for name in outputs]
    return ClassOutputs(torch.tensor(classes), torch.tensor([*outputs.values()]))


def test_teachers_are_means_over_the_holders_and_stay_without_uploads(assemble):
    assembly = assemble("feddistill")
    method, server = assembly.algorithm, assembly.server(CPU)
    four = {"c0": [4.0] + [0.0] * 9, "c2": [1.0, 1.0] + [0.0] * 8}
    first = {1: upload(**four), 3: upload(c0=[0.0, 2.0] + [0.0] * 8)}
    state = method.server_update(method.init_server(server), first, server)
    assert state["vectors"][:3, :2].tolist() == [[2.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert state["present"].tolist() == [True, False, True] + [False] * 7
    later = {0: upload(c1=[0.0, 9.0] + [0.0] * 8, c2=[0.0, 6.0] + [0.0] * 8)}
    state = method.server_update(state, later, server)
    assert state["vectors"][:3, :2].tolist() == [[2.0, 1.0], [0.0, 9.0], [0.0, 6.0]]
    assert state["present"].tolist() == [True] * 3 + [False] * 7


LOGITS = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
KNOWN = torch.tensor([[0.25, 0.75], [0.5, 0.5]])


def test_the_regulariser_by_hand():
    # -log p of the first image: log(1 + e^-1) and log(1 + e); of the second: log(1 + e^2), ...
    first = 0.25 * log(1 + exp(-1)) + 0.75 * log(1 + exp(1))
    second = 0.5 * log(1 + exp(2)) + 0.5 * log(1 + exp(-2))
    labels = torch.tensor([0, 1])
    found = distillation_loss(LOGITS, labels, KNOWN, torch.tensor([True, True]))
    assert float(found) == pytest.approx((first + second) / 2)
    found = distillation_loss(LOGITS, labels, KNOWN, torch.tensor([True, False]))
    assert float(found) == pytest.approx(first / 2)
