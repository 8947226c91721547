"""Sums over uploads: pairwise, in the order of the clients."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from fedray.core import Payload, Sums, Total, halves, mean_of, sent, total_of, weighed
from fedray.core.sums import stack_trees


def test_the_additions_by_hand():
    uploads = {9: 1e16, 1: 1.0, 5: -1e16}  # halves: [1] and [5, 9]
    total = total_of(lambda value: {"x": torch.tensor(value).double()}, uploads)
    assert total.clients == (1, 5, 9)
    assert float(total["x"]) == 1.0


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


def test_nested_sums_and_counters():
    uploads = {k: (float(k), k) for k in range(4)}
    total = total_of(
        lambda pair: {"w": {"deep": torch.tensor(pair[0])}, "steps": torch.tensor(pair[1])}, uploads
    )
    assert float(total["w"]["deep"]) == 6.0
    assert int(total["steps"]) == 3


class _Counted(Payload):
    weights = sent("weights")
    buffers = sent("statistics", counters=True)
    shares = sent("statistics")
    counts = sent("statistics", axes="C", dtype=torch.int64)
    held = sent("statistics", axes="C", dtype=torch.bool)


@pytest.mark.parametrize(
    ("term", "is_counter"),
    [
        (lambda upload: weighed(upload.weights, 2.0)["steps"], True),
        (lambda upload: weighed(upload.buffers, 2.0)["steps"], True),
        (lambda upload: upload.buffers["is_new"], True),
        (lambda upload: upload.buffers["steps"] * 2, False),
        (lambda upload: weighed(upload.shares, 2.0)["steps"], False),
        (lambda upload: upload.counts, False),
        (lambda upload: upload.held, False),
        (lambda upload: upload.counts + 0j, False),
    ],
)
def test_only_declared_counters_are_integers_of_a_sum(term, is_counter):
    counters = {"steps": torch.tensor(3), "is_new": torch.tensor([True])}
    upload = _Counted(counters, counters, {"steps": torch.tensor(3)}, *torch.ones(2, 1).long())
    refusal = nullcontext() if is_counter else pytest.raises(TypeError, match=r"as 'of\.it'")
    with refusal:
        total_of(lambda upload: {"of": {"it": term(upload)}}, {0: upload})


def test_uploads_stay_as_they_are():
    uploads = {client: {"a": torch.ones(3, dtype=torch.double)} for client in range(5)}
    for summand in (lambda upload: upload, lambda upload: weighed(upload, 2.0)):
        total_of(summand, uploads)
        assert all(upload["a"].eq(1).all() for upload in uploads.values())


def test_uploads_of_different_names_have_no_sum():
    with pytest.raises(ValueError, match="only some of the uploads have 'a'"):
        total_of(lambda name: {name: torch.ones(1)}, {0: "a", 1: "b"})


def test_a_mean_of_equal_tensors_is_exact():
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    total = total_of(
        lambda weight: {"w": weighed({"a": tensor}, weight), "n": torch.tensor(weight)},
        {client: 3.0 + client for client in range(11)},
    )
    mean = mean_of(total["w"], total["n"], {"a": tensor})
    assert mean["a"].dtype == torch.float32
    assert torch.equal(mean["a"], tensor)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 20, 31])
def test_rows_have_the_sums_of_single_clients_bit_for_bit(count):
    random = torch.Generator().manual_seed(count)
    terms = {
        client: {
            "w": {"deep": torch.randn(3, 4, generator=random).mul_(10.0 ** (client % 7))},
            "n": torch.tensor(float(client)).double(),
            "steps": torch.tensor(client % 5),
        }
        for client in range(3, 3 + count)
    }
    alone = total_of(lambda value: value, terms)
    sums = Sums(count)
    sums.add_rows([*terms], stack_trees([*terms.values()]))
    together = sums.total
    assert together.clients == alone.clients
    assert torch.equal(together["w"]["deep"], alone["w"]["deep"])
    assert (float(together["n"]), int(together["steps"])) == (
        float(alone["n"]),
        int(alone["steps"]),
    )


def test_rows_of_different_names_or_shapes_have_no_sum():
    for second in ({"y": torch.ones(2)}, {"x": torch.ones(3)}):
        with pytest.raises((ValueError, RuntimeError)):
            stack_trees([{"x": torch.ones(2)}, second])
