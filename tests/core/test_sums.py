"""Sums over uploads: pairwise, in the order of the clients."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import (
    Fields,
    Sums,
    Total,
    combined_rows,
    doubled,
    mean_of,
    sent,
    total_of,
)
from fedray.core.sums import halves, stack_trees


def tensors_of(values):
    """What uploads that are themselves trees of tensors add."""
    return stack_trees([*values])


def test_the_additions_by_hand():
    uploads = {9: 1e16, 1: 1.0, 5: -1e16}  # halves: [1] and [5, 9]
    total = total_of(uploads, lambda values: {"x": torch.tensor(values).double()})
    assert total.clients == (1, 5, 9)
    assert float(total["x"]) == 1.0


@pytest.mark.parametrize(("weights", "mean"), [("samples", 2.0), ("uniform", 3.0)])
def test_a_mean_is_weighed_by_samples_or_uniform(weights, mean):
    method = FedAvg(weights=weights)
    uploads = {
        client: FedAvg.up({"w": torch.tensor([value])}, samples)
        for client, value, samples in ((0, 1.0, 3), (1, 5.0, 1))
    }
    after = method.server_update({"model": {"w": torch.zeros(1)}}, uploads, None)
    assert after["model"]["w"].tolist() == [mean]


def test_clients_without_upload_leave_no_trace():
    sums = Sums(3)
    for part in (Total(), Total((7,), {"x": torch.ones(2)}), Total()):
        sums.add(part)
    assert sums.total.clients == (7,)
    assert torch.equal(sums.total["x"], torch.ones(2))
    nobody = Sums(2)
    for _ in range(2):
        nobody.add(Total())
    assert not nobody.total
    assert not Sums(0).total


def test_parts_are_joined_as_halves():
    """Sums of a client are its id; a sum of two has another value if operands change."""

    def by_halves(clients):
        if len(clients) == 1:
            return clients[0].double()
        first, second = map(by_halves, halves(clients))
        return first + second

    for count in range(1, 70):
        values = torch.rand(count, generator=torch.Generator().manual_seed(count)) ** 20
        sums = Sums(count)
        for client, value in enumerate(values):
            sums.add(Total((client,), {"x": value.double()}))
        assert float(sums.total["x"]) == float(by_halves(values))


_Counted = Fields(
    "_Counted",
    {
        "weights": sent("weights", combine="mean"),
        "buffers": sent("weights", combine="sum"),
        "steps": sent("statistics", number=int, combine="mean"),
        "samples": sent("statistics", number=int),
    },
)


METHOD = SimpleNamespace(weight=lambda upload: float(upload.samples))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 20, 40])
def test_rows_have_the_sums_of_single_clients_bit_for_bit(count):
    random, uploads = torch.Generator().manual_seed(count), {}
    for client in range(3, 3 + count):
        values = torch.randn(3, 4, generator=random).mul_(10.0 ** (client % 7))
        tensors = {"deep": values, "n": torch.tensor(client % 5)}
        uploads[client] = _Counted(tensors, {"n": torch.tensor([client % 3])}, 2, 1 + client)
    total = total_of(uploads, partial(combined_rows, METHOD))
    assert total.clients == (*uploads,)
    alone = Sums(count)
    for client, upload in uploads.items():
        weighed = upload.weights["deep"].double() * (1 + client)
        alone.add(Total((client,), {"deep": weighed, "weight": torch.tensor(1.0 + client)}))
    assert torch.equal(total["weights"]["deep"], alone.total["deep"])
    assert float(total["weight"]) == float(alone.total["weight"])
    assert float(total["steps"]) == 2 * float(total["weight"])
    assert int(total["weights"]["n"]) == max(client % 5 for client in uploads)
    assert int(total["buffers"]["n"]) == max(client % 3 for client in uploads)


def a_combination(**fields):
    """Rows of one upload of these fields, each a value and its declaration."""
    declared = Fields("up", {name: one for name, (_, one) in fields.items()})
    return combined_rows(METHOD, [declared(*[value for value, _ in fields.values()])])


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ({"steps": torch.tensor(3)}, sent("statistics", combine="mean")),
        (torch.ones(2).long(), sent("statistics", axes="C", dtype=torch.int64, combine="sum")),
        (torch.ones(2) > 0, sent("statistics", axes="C", dtype=torch.bool, combine="sum")),
        ({"w": torch.ones(2)}, sent("weights", combine=lambda *_: {"n": torch.tensor(3)})),
        (torch.ones(2) + 0j, sent("weights", axes="C", dtype=torch.complex64, combine="sum")),
    ],
)
def test_what_has_no_sum_is_refused_by_name(value, declared):
    with pytest.raises(TypeError, match=r"^'it' has no sum: combine adds torch\.(int|bool|compl)"):
        a_combination(it=(value, declared))


def test_functions_get_the_method_and_the_upload():
    rows = a_combination(
        it=({"w": torch.ones(2)}, sent("weights", combine=lambda method, upload: upload.it)),
        rest=({"w": torch.ones(2)}, sent("weights")),
    )
    assert rows.keys() == {"weight", "it"}  # without samples, the weight is 1
    assert rows["it"]["w"].tolist() == [[1.0, 1.0]]
    with pytest.raises(ValueError, match="combine='men'"):
        sent("weights", combine="men")


def test_uploads_stay_as_they_are():
    uploads = {client: {"a": torch.ones(3, dtype=torch.double)} for client in range(5)}
    for factors in (None, torch.full((5,), 2.0).double()):
        doubled([*uploads.values()], "a", factors)
        total_of(uploads, tensors_of)
        assert all(upload["a"].eq(1).all() for upload in uploads.values())


def test_uploads_of_different_names_have_no_sum():
    with pytest.raises(ValueError, match="only some have 'a'"):
        total_of({0: {"a": torch.ones(1)}, 1: {"b": torch.ones(1)}}, tensors_of)


def test_a_mean_of_equal_tensors_is_exact():
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    uploads = {client: _Counted({"a": tensor}, {}, 1, 3 + client) for client in range(11)}
    total = total_of(uploads, partial(combined_rows, METHOD))
    mean = mean_of(total["weights"], total["weight"], {"a": tensor})
    assert mean["a"].dtype == torch.float32
    assert torch.equal(mean["a"], tensor)


def test_rows_of_different_names_or_shapes_have_no_sum():
    for second in ({"y": torch.ones(2)}, {"x": torch.ones(3)}):
        with pytest.raises((ValueError, RuntimeError)):
            stack_trees([{"x": torch.ones(2)}, second])
