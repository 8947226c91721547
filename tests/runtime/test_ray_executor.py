"""How clients are divided among workers."""

from __future__ import annotations

import pytest

from fedray.runtime.ray_executor import longest_first, rows_of


def test_the_longest_first_to_whoever_has_the_least_to_do():
    assert longest_first({0: 1, 1: 5, 2: 2, 3: 2}, 2) == [[1], [2, 3, 0]]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 30])
def test_rows_are_all_clients_in_their_order(workers):
    seconds = {client * 3: 1 + client % 5 for client in range(20)}
    rows = rows_of(seconds, workers)
    assert len(rows) == workers
    assert [client for row in rows for client in row] == sorted(seconds)


def test_equal_clients_are_cut_where_the_tree_is():
    assert [len(row) for row in rows_of(dict.fromkeys(range(20), 1.0), 4)] == [5, 5, 5, 5]
    assert [len(row) for row in rows_of(dict.fromkeys(range(21), 1.0), 2)] == [10, 11]


def test_so_are_nearly_equal_ones():
    seconds = dict.fromkeys(range(40), 1.0) | {0: 1.5, 1: 1.5}  # the loads meet at 19
    assert [len(row) for row in rows_of(seconds, 2)] == [20, 20]


def test_others_are_cut_by_what_they_take():
    seconds = dict.fromkeys(range(9), 1.0) | {9: 9.0}
    assert rows_of(seconds, 2) == [list(range(9)), [9]]
