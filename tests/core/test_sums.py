"""Sums by a tree: the same bits for any division of clients among workers and any order."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedray.core import Part, TreeSum, cut_depth, mean_of, total_of, weighed


def summands(count: int) -> dict[int, dict[str, object]]:
    """What clients 3, 10, 17, ... add; of very different size, so that the order shows."""
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randn(count, 5, generator=generator).double()
    scale = 10.0 ** torch.randint(-12, 12, (count, 1), generator=generator)
    return {
        3 + 7 * i: {"w": {"deep": drawn[i] * scale[i]}, "steps": torch.tensor(i % 5)}
        for i in range(count)
    }


def bits(total) -> tuple[object, ...]:
    return total.clients, total["w"]["deep"].tolist(), int(total["steps"])


@given(st.integers(1, 40), st.integers(1, 6), st.randoms(use_true_random=False))
def test_any_division_among_workers_gives_the_same_bits(
    count: int, workers: int, chance: random.Random
):
    each = summands(count)
    absent = {client for client in each if len(each) > 1 and chance.random() < 0.2}
    absent -= {3}
    whole = TreeSum.of(each)
    for client, summand in each.items():
        whole.add(client, None if client in absent else summand)
    shares = [TreeSum(whole.positions, whole.leaves) for _ in range(workers)]
    clients = list(each)
    chance.shuffle(clients)
    for client in clients:
        if client in absent and chance.random() < 0.5:
            continue  # a worker that was late says nothing of it
        chance.choice(shares).add(client, None if client in absent else each[client])
    parts = [part for share in shares for part in share.parts()]
    chance.shuffle(parts)
    joined = TreeSum.of(each)
    for part in parts:
        joined.join(part)
    assert bits(joined.total()) == bits(whole.total())
    assert joined.total().clients == tuple(sorted(each.keys() - absent))


def test_a_share_in_a_row_is_one_part_where_the_tree_is_cut():
    for workers in (1, 2, 4):
        each = summands(20)
        parts = 0
        for worker in range(workers):
            share = TreeSum(TreeSum.of(each).positions, len(each))
            for client in list(each)[worker * 20 // workers : (worker + 1) * 20 // workers]:
                share.add(client, each[client])
            parts += len(share.parts())
        assert parts == workers


def test_the_tree_by_hand():
    total = TreeSum.of([5, 1, 9])  # halves: [1] and [5, 9]
    for client, value in {9: 1e16, 1: 1.0, 5: -1e16}.items():
        total.add(client, {"x": torch.tensor(value).double()})
    (part,) = total.parts()
    assert (part.first, part.end, part.clients) == (0, 3, (1, 5, 9))
    assert float(total.total()["x"]) == 1.0


def test_what_is_no_subtree_is_refused():
    with pytest.raises(ValueError, match="positions 1 to 3 of 4 are no subtree"):
        TreeSum.of(range(4)).join(Part(1, 3))


def test_uploads_of_different_names_have_no_sum():
    total = TreeSum.of([0, 1])
    total.add(0, {"a": torch.ones(1)})
    with pytest.raises(ValueError, match="only some of the uploads have 'a'"):
        total.add(1, {"b": torch.ones(1)})


def test_nobody_adds_up_to_nothing():
    total = TreeSum.of([2, 4])
    total.add(2, None)
    assert not total.total()
    assert not TreeSum.of([]).total()
    assert total_of(lambda upload: upload, {}).clients == ()


def test_a_mean_of_equal_tensors_is_exact():
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    total = TreeSum.of(range(11))
    for client in range(11):
        weight = 3.0 + client
        total.add(client, {"w": weighed({"a": tensor}, weight), "n": torch.tensor(weight)})
    mean = mean_of(total.total()["w"], total.total()["n"], {"a": tensor})
    assert mean["a"].dtype == torch.float32
    assert torch.equal(mean["a"], tensor)


def test_where_cuts_lie_in_the_tree():
    assert [cut_depth(at, 8) for at in (4, 2, 6, 1, 3, 5, 7)] == [0, 1, 1, 2, 2, 2, 2]
