"""Trees of tensors, and their way to another device."""

from __future__ import annotations

import torch

from fedray.base.trees import leaves, moved_to
from tests.pretended_device import COUNTS, device

TREE = {
    "model": {"weight": torch.arange(6.0).view(2, 3).T, "steps": torch.tensor(7)},
    "memory": {"deep": {"none": torch.zeros(0, 3), "one": torch.tensor(1.5)}},
}


def test_tensors_of_one_type_move_in_one_copy():
    tensors = [tensor for _, tensor in leaves(TREE)]
    before = COUNTS["copies"]
    there = moved_to(tensors, device())
    assert COUNTS["copies"] - before == 2  # float32, int64
    assert {tensor.device for tensor in there} == {device()}
    for tensor, back in zip(tensors, moved_to(there, torch.device("cpu")), strict=True):
        assert torch.equal(tensor, back)
        assert back.is_contiguous()
