"""Tensors as views of one vector per type: places, copies, and models that consist of them."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from ray import cloudpickle
from tensors import gaussian, same
from torch import nn

from fedray.base.flat import ALIGNMENT
from fedray.core import Flat
from fedray.core.client import Skeleton

MIXED = {
    "matrix": gaussian(3, 5),
    "transposed": gaussian(4, 3, seed=1).T,
    "expanded": gaussian(1, 3, seed=2).expand(2, 3),
    "double": gaussian(7, seed=3, dtype=torch.float64),
    "steps": torch.tensor(7),
    "scalar": torch.tensor(0.5),
    "empty": torch.zeros(0, 4),
    "half": gaussian(5, seed=4).half(),
    "flags": torch.tensor([True, False, True]),
    "last": gaussian(2, 3, 2, seed=5),
}


@pytest.mark.parametrize("rows", [(), (3,)])
def test_every_tensor_begins_at_a_multiple_of_64_bytes(rows):
    flat = Flat.of(MIXED).layout.empty(*rows)
    for name, tensor in flat.items():
        assert tensor.shape == (*rows, *MIXED[name].shape)
        for row in tensor if rows else [tensor]:
            assert row.data_ptr() % ALIGNMENT == 0 or not row.numel()
            assert row.is_contiguous()


def test_tensors_share_memory_with_nothing_but_their_vectors():
    flat = Flat.of(MIXED)
    assert same(flat, MIXED)
    assert [*flat] == [*flat.keys()] == [*MIXED]
    assert len(flat.vectors) == 5  # float32, float64, int64, float16, bool
    used = sum(int((tensor != 0).sum()) for tensor in MIXED.values())
    assert sum(int((vector != 0).sum()) for vector in flat.vectors) == used  # zeros between
    for vector in flat.vectors:
        vector.zero_()
    assert not any(tensor.any() for tensor in flat.values())
    assert MIXED["matrix"].all()


def test_an_empty_one():
    flat = Flat.of({})
    assert (dict(flat), len(flat.vectors), "name" in flat) == ({}, 0, False)
    flat.copy_({})


@pytest.mark.parametrize("form", [Flat.of, dict, lambda tree: dict(reversed([*tree.items()]))])
def test_copies_of_other_tensors(form):
    first, doubled = Flat.of(MIXED), {name: tensor + tensor for name, tensor in MIXED.items()}
    vectors = [vector.data_ptr() for vector in first.vectors]
    first.copy_(form(doubled))
    assert same(first, doubled)
    assert [vector.data_ptr() for vector in first.vectors] == vectors
    copied = first.clone()
    copied["last"].zero_()
    assert same(first, doubled)


def test_alike_tensors_have_one_layout():
    layout = Flat.of(MIXED).layout
    assert Flat.of({name: tensor.clone() for name, tensor in MIXED.items()}).layout is layout
    for other in (
        MIXED | {"scalar": torch.zeros(1)},
        MIXED | {"scalar": torch.tensor(1)},
        dict(reversed([*MIXED.items()])),
    ):
        assert Flat.of(other).layout is not layout


@pytest.mark.parametrize("copy", [lambda x: pickle.loads(pickle.dumps(x)), deepcopy])
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_pickled_one_has_the_same_layout(copy, dumps):
    flat = Flat.of(MIXED)
    after = copy(pickle.loads(dumps(flat)))
    assert after.layout is flat.layout
    assert same(after, flat)
    after.vectors[0].zero_()
    assert not after["matrix"].any()
    assert flat["matrix"].all()


def test_rows_are_vectors():
    flat, rows = Flat.of(MIXED), Flat.of(MIXED).layout.empty(2)
    for matrix, vector in zip(rows.vectors, flat.vectors, strict=True):
        matrix[1] = vector
    one = Flat(rows.layout, [matrix[1] for matrix in rows.vectors])
    assert same(one, flat)
    for name, tensor in rows.items():
        assert torch.equal(tensor[1], flat[name])
        assert not tensor[0].any()


def test_results_of_a_function_of_vectors():
    doubles = Flat.of({"a": gaussian(3), "b": gaussian(2, seed=1)}).map(torch.Tensor.double)
    assert torch.equal(doubles["b"], gaussian(2, seed=1).double())


# --- models --------------------------------------------------------------------------------------


class Net(nn.Module):
    """A small network with running statistics, a tied weight and an unsaved buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(self.norm(self.first(x)).relu())


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    """Take a few steps; return all tensors."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        sgd.zero_grad()
        model(gaussian(4, 6, seed=step)).square().mean().backward()
        sgd.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def test_a_model_whose_parameters_are_views_trains_as_before():
    plain = Net()
    skeleton = Skeleton(deepcopy(plain))
    model, first = skeleton.model, skeleton.tensors.clone()
    assert model.second.weight is model.first.weight  # tied
    assert "second.weight" not in skeleton.tensors
    expected = trained(plain)
    assert same(trained(model), expected)
    tensors = skeleton.tensors
    assert all(torch.equal(tensors[name], expected[name]) for name in tensors)
    version = model.first.weight._version
    skeleton.load(first)
    assert model.first.weight._version > version
    assert all(parameter.grad is None for parameter in model.parameters())
    assert int(model.calls) == int(model.norm.num_batches_tracked) == 0
    assert same(trained(model), expected)
    skeleton.load(dict(first))
    assert same(trained(model), expected)


@pytest.mark.parametrize("form", [dict, Flat.of])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"first.bias": torch.zeros(1)}, r"first\.bias is float32 \[1\], expected float32 \[6\]"),
        ({"first.bias": torch.zeros(6).double()}, r"first\.bias is float64"),
        ({"odd": torch.zeros(1)}, "odd is .*expected none"),
    ],
)
def test_other_tensors_are_not_loaded(form, change, words):
    skeleton = Skeleton(Net())
    before = skeleton.tensors.clone()
    with pytest.raises(ValueError, match=words):
        skeleton.load(form({**before, **change}))
    assert same(skeleton.tensors, before)
