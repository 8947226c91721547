"""Gifts: sent once to each client, acknowledged, and versioned."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from fedray.core import Exchange, held_versions


class Recorded(Exchange):
    """Records calls; the clients in `failing` do not reply."""

    def __init__(self, clients: int = 4) -> None:
        self.server = SimpleNamespace(setting=SimpleNamespace(clients=clients))
        self.participants = self.everyone = range(clients)
        self.replied, self.absent = (), set()
        self.failing: set[int] = set()
        self.calls: list[tuple[str, list[int]]] = []

    def call(self, step, down):
        self.calls.append((step, sorted(down)))
        self.replied = [client for client in down if client not in self.failing]
        return {}

    def total(self, step, down):
        raise NotImplementedError


ALL = dict.fromkeys(range(4), "payload")


def test_a_gift_is_sent_once():
    exchange = Recorded()
    state = exchange.give({"w": torch.ones(1)}, "text", ALL)
    again = exchange.give(state, "text", ALL)
    assert exchange.calls == [("text", [0, 1, 2, 3])]
    assert again is state
    assert state["given"]["text"].tolist() == [0, 0, 0, 0]
    assert "w" in state


def test_clients_that_failed_get_it_again_and_no_others():
    exchange = Recorded()
    exchange.failing = {1, 3}
    state = exchange.give({}, "text", ALL)
    assert held_versions(state, "text", exchange.server.setting).tolist() == [0, -1, 0, -1]
    exchange.failing = {3}
    state = exchange.give(state, "text", ALL)
    assert exchange.calls[1:] == [("text", [1, 3])]
    assert state["given"]["text"].tolist() == [0, 0, 0, -1]


def test_absent_clients_are_not_called_again_in_their_round():
    exchange = Recorded()
    exchange.absent = {2}
    exchange.give({}, "text", ALL)
    assert exchange.calls == [("text", [0, 1, 3])]


def test_another_version_is_sent_to_all_who_hold_an_older_one():
    exchange = Recorded()
    state = exchange.give({}, "images", {0: "old", 1: "old"}, version=2)
    state = exchange.give(state, "images", dict.fromkeys(range(3), "new"), version=5)
    assert exchange.calls == [("images", [0, 1]), ("images", [0, 1, 2])]
    assert state["given"]["images"].tolist() == [5, 5, 5, -1]


def test_gifts_are_noted_apart():
    exchange = Recorded()
    before = exchange.give({}, "text", {0: "text"})
    state = exchange.give(before, "head", {1: "head"})
    assert state["given"]["text"].tolist() == [0, -1, -1, -1]
    assert state["given"]["head"].tolist() == [-1, 0, -1, -1]
    assert "head" not in before["given"], "a state is never changed in place"
