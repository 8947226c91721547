"""The store of states: bounded memory, checkpoints, files that go when unused."""

from __future__ import annotations

import random

import pytest
import torch

from fedray.core import ClientState
from fedray.storage.states import StateStore
from fedray.storage.tensors import LARGE, TreeFile, write_tree

BIG = LARGE // 4 + 1
"""Numbers of a state that has a file of its own."""


def state(value: float, numbers: int = 10) -> ClientState:
    return ClientState({"w": torch.full((numbers,), float(value))})


def written(store: StateStore, value: float) -> TreeFile:
    """A large state as a worker writes it."""
    path = store.folder / f"{store.database.new_name()}-0.safetensors"
    return write_tree(path, vars(state(value, BIG)))


def values(store: StateStore) -> dict[int, float]:
    return {client: float(found.model["w"][0]) for client, found in store.items()}


def save(store: StateStore, states: dict) -> None:
    """Write what `begin` gave, as a checkpoint does, and go on."""
    trees = {k: s if isinstance(s, TreeFile) else vars(s) for k, s in states.items()}
    store.finish(store.database.save({}, trees.items()).places)


def reopened(store: StateStore) -> StateStore:
    again = StateStore(store.folder.parent)
    again.database.load()
    return again


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path, memory=10_000)


def test_memory_holds_no_more_than_it_may_and_all_can_be_read(store):
    for client in range(100):
        store.put(client, state(client, 100))
        assert store.nbytes <= 10_000
    assert isinstance(store.find(0), TreeFile)
    assert isinstance(store.find(99), ClientState)
    assert values(store) == {client: client for client in range(100)}
    save(store, store.begin())
    assert list(store.folder.iterdir()) == [], "small states are in the database"
    assert values(store) == values(reopened(store)) == {client: client for client in range(100)}
    assert store.nbytes <= 10_000


def test_what_was_asked_for_last_stays(store):
    for client in range(100):
        store.put(client, state(client, 100))
        assert isinstance(store.find(0), ClientState)


def test_a_client_that_never_stepped_has_none(store):
    assert store.get(3) is None
    assert store.find(3) is None
    with pytest.raises(KeyError):
        store[3]
    assert not store.folder.exists()


def test_a_state_that_was_saved_is_not_read_again_while_it_is_in_memory(store, monkeypatch):
    store.put(0, state(0))
    save(store, store.begin())
    monkeypatch.setattr(store.database, "read", None)
    assert values(store) == {0: 0}


def test_without_a_folder_there_is_a_temporary_one_that_goes():
    store = StateStore(memory=100)
    for client in range(10):
        store.put(client, state(client))
    folder = store.folder
    assert list(folder.iterdir())
    assert values(store) == {client: client for client in range(10)}
    store.close()
    assert not folder.exists()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_last_checkpoint_is_whole_and_no_file_is_left(tmp_path, seed):
    """Random steps and checkpoints, against a plain dict."""
    at = random.Random(seed)
    store = StateStore(tmp_path, memory=at.choice([0, 500, 300_000]))
    now: dict[int, float] = {}
    last, saving, begun = {}, None, {}
    for step in range(200):
        action = at.choice(["put"] * 4 + ["written", "write", "begin", "finish"])
        client, size = at.randrange(8), at.choice([10, 100, BIG])
        if action == "put":
            store.put(client, state(step, size))
            now[client] = step
        elif action == "written":
            store.put(client, written(store, step))
            now[client] = step
        elif action == "write":
            store.write(client, state(step, size))
            now[client] = step
        elif action == "begin" and saving is None:
            saving, begun = store.begin(), dict(now)
        elif action == "finish" and saving is not None:
            save(store, saving)
            last, saving = begun, None
        assert values(store) == now
        assert store.unused_files() == []
        if step % 10 == 0:
            assert values(reopened(store)) == last
    if saving is not None:
        save(store, saving)
        last = begun
    store.close()
    assert store.unused_files() == []
    assert values(reopened(store)) == last
