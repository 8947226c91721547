"""How clients are divided among workers, and that no division changes a sum."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.core import Sums, Total
from fedray.runtime import shares
from fedray.runtime.shares import shares_of_blocks, shares_of_groups


def test_the_longest_first_to_whoever_has_the_least_to_do():
    found = shares_of_groups([(0,), (1,), (2,), (3,)], {0: 1, 1: 5, 2: 2, 3: 2}, 2)
    assert found == [[(1,)], [(2,), (3,), (0,)]]
    groups = [(client, client + 5) for client in range(5)]
    shares = shares_of_groups(groups, dict.fromkeys(range(10), 1.0), 2)
    assert shares == [[(0, 5), (2, 7), (4, 9)], [(1, 6), (3, 8)]]


def test_equal_clients_are_one_block_per_worker():
    for workers in (1, 2, 4):
        shares = shares_of_blocks(range(20), dict.fromkeys(range(20), 0.1), workers)
        assert [len(calls) for calls in shares] == [1] * workers


def test_a_slow_client_is_a_block_of_its_own():
    seconds = {0: 8.0} | dict.fromkeys(range(1, 8), 1.0)
    slow, fast = shares_of_blocks(range(8), seconds, 2)
    assert slow == [range(1)]
    assert sorted(client for block in fast for client in block) == [*range(1, 8)]


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 8), st.randoms())
def test_no_division_changes_a_bit(count: int, workers: int, least: int, chance: random.Random):
    everyone = [3 + 7 * number for number in range(count)]
    summands = {
        client: {"x": torch.tensor(chance.uniform(-1, 1) * 10.0 ** chance.randint(-12, 12))}
        for client in everyone
    }
    absent = {client for client in everyone[1:] if chance.random() < 0.2}

    def total_over(clients):
        sums = Sums(len(clients))
        for client in clients:
            sums.add(Total() if client in absent else Total((client,), summands[client]))
        return sums.total

    seconds = {client: chance.expovariate(1.0) for client in everyone}
    shares = shares_of_blocks(everyone, seconds, workers, least)
    blocks = sorted(tuple(block) for share in shares for block in share)
    assert [client for block in blocks for client in block] == everyone
    whole, joined = total_over(everyone), Sums(count)
    for block in blocks:
        joined.add(total_over(block), len(block))
    found = joined.total
    assert found.clients == whole.clients
    assert float(found["x"]) == float(whole["x"])


@pytest.mark.parametrize("most", [1, 17, 34])
def test_clients_that_are_summed_together_hold_few_states(assemble, monkeypatch, most):
    made = assemble("fedproto", {"model.group": "cnn2"})
    monkeypatch.setattr(shares, "HELD_TOGETHER", most * made.model_numbers)
    down = dict.fromkeys(range(100), FedProto.down(torch.zeros(10, 8), torch.ones(10).bool()))
    groups = shares.groups_of_step(made, "client_update", down, at_once=True)
    assert most / 2 <= max(map(len, groups)) <= most
    assert [client for group in groups for client in group] == [*range(100)]
