"""The store of states: bounded memory, ways back, files that go when nobody needs them."""

from __future__ import annotations

import random

import pytest
import torch

from fedray.core import ClientState
from fedray.states import Place, StateStore
from fedray.states.segments import SegmentWriter


def state(value: float, numbers: int = 10) -> ClientState:
    return ClientState({"w": torch.full((numbers,), float(value))})


LARGE = 30_000
"""Numbers of a state that has a file of its own."""


def values(store: StateStore) -> dict[int, float]:
    return {client: float(found.model["w"][0]) for client, found in store.items()}


def saved(store: StateStore) -> dict:
    """Save as a checkpoint does; what it says."""
    saving = store.begin()
    facts = saving.write()
    store.finish(saving)
    return facts


def reopened(store: StateStore, facts) -> StateStore:
    again = StateStore(store.folder)
    again.adopt(facts)
    return again


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "states", memory=10_000)


def test_memory_holds_no_more_than_it_may_and_all_can_be_read(store):
    for client in range(100):
        store.put(client, state(client, 100))
        assert store._bytes_at_hand <= 10_000
    assert values(store) == {client: client for client in range(100)}
    assert isinstance(store.find(0), Place)
    assert isinstance(store.find(99), ClientState)
    assert len(list(store.folder.iterdir())) < 50


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


@pytest.mark.parametrize("numbers", [10, LARGE])
def test_back_to_what_was_held(store, numbers):
    store.put(0, state(0, numbers))
    store.put(1, state(1, numbers))
    store.hold()
    for value in (10, 20):
        store.put(1, state(value, numbers))
        store.put(2, state(value, numbers))
    store.revert()
    assert values(store) == {0: 0, 1: 1}
    store.put(0, state(5, numbers))
    store.revert()
    assert values(store) == {0: 0, 1: 1}


def test_back_to_what_was_held_and_then_saved(store):
    store.put(0, state(0, LARGE))
    saved(store)
    store.hold()
    store.put(0, state(1, LARGE))
    store.put(1, state(1, LARGE))
    store.revert()
    assert values(reopened(store, saved(store))) == {0: 0}


def test_what_changes_while_it_is_saved_is_in_the_next_one(store):
    store.put(0, state(0, LARGE))
    store.put(1, state(1))
    saving = store.begin()
    store.put(0, state(10, LARGE))
    store.put(2, state(12))
    facts = saving.write()
    store.put(1, state(11))
    store.finish(saving)
    assert values(reopened(store, facts)) == {0: 0, 1: 1}
    assert values(store) == {0: 10, 1: 11, 2: 12}
    assert values(reopened(store, saved(store))) == {0: 10, 1: 11, 2: 12}


def test_what_could_not_be_saved_is_in_the_next_one(store):
    store.put(0, state(0, LARGE))
    store.put(1, state(1))
    facts = saved(store)
    store.put(0, state(10, LARGE))
    saving = store.begin()
    store.put(1, state(11))
    saving.write()
    store.abandon(saving)
    assert values(reopened(store, facts)) == {0: 0, 1: 1}
    assert values(reopened(store, saved(store))) == {0: 10, 1: 11}
    assert store.unused_files() == []


def test_what_is_closed_leaves_what_was_saved(store):
    store.put(0, state(0, LARGE))
    facts = saved(store)
    store.put(0, state(1, LARGE))
    store.put_to_rest(1, state(2, LARGE))
    store.close()
    assert store.unused_files() == []
    assert len(list(store.folder.iterdir())) == 2
    assert values(reopened(store, facts)) == {0: 0}


def test_a_temporary_folder_goes():
    store = StateStore(memory=100)
    for client in range(10):
        store.put(client, state(client))
    folder = store.folder
    assert list(folder.iterdir())
    store.close()
    assert not folder.exists()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_last_checkpoint_is_whole_and_no_file_is_left(tmp_path, seed):
    """Random steps, checkpoints, failed ones and returns, against a plain dict."""
    at = random.Random(seed)
    store = StateStore(tmp_path / "states", memory=at.choice([0, 500, 300_000]))
    now: dict[int, float] = {}
    held, last, facts, saving, begun = {}, {}, None, None, {}
    store.hold()
    for step in range(200):
        action = at.choice(["put"] * 5 + ["rest", "hold", "revert", "begin", "finish", "abandon"])
        client, size = at.randrange(8), at.choice([10, 100, LARGE])
        if action == "put":
            store.put(client, state(step, size))
            now[client] = step
        elif action == "rest":
            store.put_to_rest(client, state(step, size))
            now[client] = step
        elif action == "hold":
            store.hold()
            held = dict(now)
        elif action == "revert":
            store.revert()
            now = dict(held)
        elif action == "begin" and saving is None:
            saving, begun = store.begin(), dict(now)
        elif action == "finish" and saving is not None:
            facts, last = saving.write(), begun
            store.finish(saving)
            saving = None
        elif action == "abandon" and saving is not None:
            if at.random() < 0.5:
                saving.write()
            store.abandon(saving)
            saving = None
        assert values(store) == now
        if facts is not None and step % 10 == 0:
            assert values(reopened(store, facts)) == last
    if saving is not None:
        store.abandon(saving)
    store.close()
    assert store.unused_files() == []
    if facts is not None:
        assert values(reopened(store, facts)) == last


def test_a_file_that_a_new_state_shares_is_on_the_disk_before_a_checkpoint_names_it(
    store, monkeypatch
):
    images = torch.arange(2**18, dtype=torch.int32)

    def keeping(value: float) -> ClientState:  # as a worker does, several in one call
        return ClientState({"w": torch.full((LARGE,), value)}, {"images": images.clone()})

    with SegmentWriter(store.folder, store.new_name) as writer:
        places = [writer.add(keeping(value)) for value in (0.0, 1.0)]
    for client, place in enumerate(places):
        store.put_to_rest(client, place)
    store.hold()
    store.put_to_rest(0, state(2.0))
    synced: set[str] = set()
    monkeypatch.setattr("fedray.states.store.sync", lambda path: synced.add(path.name))
    saved(store)
    assert places[1].shared == (places[0].file,)
    assert {places[0].file, places[1].file} <= synced
