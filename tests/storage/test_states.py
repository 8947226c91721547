"""The store of states: everything comes back, kills and full disks leave the commit before."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedray.base.errors import UserError
from fedray.base.trees import Snapshot
from fedray.core import ClientState, Flat
from fedray.storage import states
from fedray.storage.states import (
    Commit,
    Pin,
    StateFile,
    StateStore,
    latest_round,
    new_path,
    write_states,
)

FACTS = {"identity": "this experiment"}


def state(value: float, numbers: int = 10) -> ClientState:
    model = {"fc.weight": torch.full((numbers,), float(value)), "steps": torch.tensor(7)}
    return ClientState(Flat.of(model) if value % 2 else model, {"n": torch.tensor(int(value))})


def commit(store: StateStore, round_: int, new: Mapping[int, ClientState], **options: Any) -> None:
    store.put(new)
    store.commit(Snapshot(round_, {"round": torch.tensor(round_)}), FACTS, **options)
    store.wait()


def pin(store: StateStore, name: str) -> Pin:
    return Pin(name, {"of": name}, [store.write({-2: {"w": torch.ones(3)}})])


def values(of: Mapping[int, ClientState]) -> dict[int, int]:
    return {client: int(found.memory["n"]) for client, found in of.items()}


def reopened(store: StateStore) -> tuple[int, dict[int, int]]:
    """What a process that comes later reads: the round, and the clients' values."""
    found = StateStore(store.folder).load()
    if found is None:
        return -1, {}
    assert int(found.snapshot.server["round"]) == found.snapshot.round
    return found.snapshot.round, values(found.clients)


def names(store: StateStore) -> set[str]:
    return {path.name for path in store.folder.glob("*.safetensors")}


def assert_same_tree(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Equal names in the same order, equal tensors of the same type, at every level."""
    assert list(found) == list(expected)
    assert isinstance(found, Flat) == isinstance(expected, Flat)
    for name, value in expected.items():
        if isinstance(value, Mapping):
            assert_same_tree(found[name], value)
        else:
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            assert torch.equal(found[name], value)


@pytest.fixture
def store(tmp_path):
    return StateStore(tmp_path / "states")


def test_everything_comes_back(store):
    tensors = {
        "vectors": torch.randn(4, 3),
        "present": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(3).bfloat16(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "transposed": torch.randn(3, 2).T,
        "z": torch.tensor(3),
        "a": torch.randn(2),
    }
    converted = Flat.of({"w": torch.randn(3)}).map(torch.Tensor.half)
    tree = {**tensors, "flat": Flat.of(tensors), "half flat": dict(converted), "none": {}}
    clients = {
        3: ClientState(Flat.of(tensors), {"a/b": {"c": torch.randn(2)}, "a": {"b/c": tree}}),
        0: ClientState({}),
        11: state(1.0),
    }
    store.put(clients)
    store.commit(Snapshot(5, {**tree, "half flat": converted}), FACTS)
    store.wait()
    found = StateStore(store.folder).load()
    assert found.snapshot.round == 5
    assert_same_tree(found.snapshot.server, tree)
    assert list(found.clients) == [0, 3, 11]
    for of in (found.clients, store):
        for client, before in clients.items():
            assert_same_tree(of[client].model, before.model)
            assert_same_tree(of[client].memory, before.memory)
    assert found.clients[3].model["a"].data_ptr() % 64 == 0


def test_without_a_commit_there_is_none(store):
    assert reopened(store) == (-1, {})
    assert latest_round(store.folder) is None
    assert store.get(3) is None
    assert not store.folder.exists()


def test_a_store_without_a_folder_has_a_temporary_one():
    store = StateStore()
    store.put({1: state(4)})
    assert StateFile(store.folder / store.places()[1]).read(1)["memory"]["n"] == 4
    folder = store.folder
    store.close()
    assert not folder.exists()


def test_a_pin_outlives_its_commit(store):
    for round_ in range(4):
        best = pin(store, "best") if round_ == 1 else None
        commit(store, round_, {0: state(round_)}, pin=best)
    kept = Commit.read(store.folder, "best")
    assert kept.facts == {"of": "best"}
    assert (kept.find(0)["memory"]["n"], kept.find(-2)["w"].sum(), kept.find(9)) == (1, 3, None)
    commit(store, 4, {0: state(4)}, pin=pin(store, "best"))
    store.tidy()
    assert names(store) == set(Commit.read(store.folder, "best").files)


def test_a_cleared_store_keeps_its_pins_and_what_others_put_there(store):
    commit(store, 0, {0: state(0)}, pin=pin(store, "best"))
    store.clear()
    assert reopened(store) == (-1, {})
    assert Commit.read(store.folder, "best").find(0)["memory"]["n"] == 0
    (store.folder / "best.json").unlink()
    (store.folder / "mine.txt").touch()
    store.clear()
    assert [path.name for path in store.folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("seed", range(8))
def test_after_any_steps_the_last_commit_is_whole_and_the_folder_small(tmp_path, seed):
    """Random states, files of workers and commits, against a plain dictionary."""
    at, store = random.Random(seed), StateStore(tmp_path / "states")
    now, begun, last = dict[int, int](), dict[int, int](), dict[int, int]()
    clients = at.choice([3, 12])
    for step in range(250):
        action = at.choice(["put", "put", "worker", "places", "begin", "wait"])
        client, size = at.randrange(clients), at.choice([10, 3000])
        if action == "put":
            store.put({client: state(step, size)})
            now[client] = step
        elif action == "worker":
            places = store.places()
            share = {c for c in range(client, clients) if at.random() < 0.5} | {client}
            for own in (c for c in share if c in places):
                read = StateFile(store.folder / places[own]).read(own)
                assert int(read["memory"]["n"]) == now[own]
            trees = {own: vars(state(step, size)) for own in share}
            store.add(write_states(new_path(store.folder, store.number), trees))
            now |= dict.fromkeys(share, step)
        elif action == "places":
            assert set(store.places()) == set(now)
        elif action == "begin":
            store.commit(Snapshot(step, {"round": torch.tensor(step)}), FACTS)
            last, begun = begun, dict(now)
        else:
            store.wait()
            last = begun
        assert values(store) == now
        if step % 10 == 0:
            assert reopened(store)[1] in (last, begun)
    commit(store, 999, {})
    store.tidy()
    assert reopened(store) == (999, now)
    live = sum((store.folder / name).stat().st_size for name in names(store))
    needed = sum(t.nbytes for s in store.values() for t in (*s.model.values(), *s.memory.values()))
    assert live <= 2 * needed + 4000 * len(names(store))


# --- kills and damage -----------------------------------------------------------------------------


def test_what_a_pointer_names_is_on_the_disk_before_it(store, monkeypatch):
    done: list[str] = []
    sync, write = states.sync, states.write_atomic
    monkeypatch.setattr(states, "sync", lambda path: (sync(path), done.append(path.name)))
    monkeypatch.setattr(states, "write_atomic", lambda p, t: (done.append(p.name), write(p, t)))
    store.add(store.write({0: vars(state(0))}))
    store.commit(
        Snapshot(0, {}), FACTS, pin(store, "best"), before=lambda: done.append("rounds.jsonl")
    )
    store.wait()
    assert done[0] == "rounds.jsonl"
    before_best = {*done[: done.index("best.json")]}
    assert names(store) | {"states"} <= before_best
    assert done.index("best.json") < done.index("head.json") < len(done) - 1
    assert done[-1] == "states"


class Killed(BaseException):
    """What a process does not survive."""


@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
def test_stopped_before_any_of_its_actions_a_commit_is_whole_or_the_one_before(tmp_path, error):
    for moment in range(100):
        store = StateStore(tmp_path / str(moment))
        commit(store, 0, {0: state(0), 1: state(10)})
        actions = 0

        def act(function, *args, moment=moment):
            nonlocal actions
            actions += 1
            if actions > moment:
                raise error
            return function(*args)

        with pytest.MonkeyPatch.context() as patch:
            for name in ("write_states", "sync", "write_atomic"):
                patch.setattr(states, name, partial(act, getattr(states, name)))
            best = Pin("best", {}, [])
            try:
                commit(store, 1, {1: state(11)}, pin=best)
            except type(error):
                pass
            else:
                break
        round_, found = reopened(store)
        assert (round_, found) in [(0, {0: 0, 1: 10}), (1, {0: 0, 1: 11})]
        later = StateStore(store.folder)
        later.load()
        later.tidy()
        if round_ == 0:
            commit(later, 1, {1: state(11)}, pin=best)
        assert reopened(later) == (1, {0: 0, 1: 11})
    assert moment > 5


def refused(path: Path, read: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=f"{path.name} is damaged") as raised:
        read()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("step", [331, pytest.param(1, marks=pytest.mark.slow)])
def test_each_bit_of_a_pointer_counts(store, step):
    """And every 101st of a file of states; in short, a part of both."""
    commit(store, 0, {0: state(0), 1: state(1)}, pin=pin(store, "best"))
    for path in store.folder.iterdir():
        is_pointer, content = path.suffix == ".json", path.read_bytes()
        for bit in range(0, 8 * len(content), step if is_pointer else 101 * min(step, 9)):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            if is_pointer:
                refused(path, lambda: Commit.read(store.folder, path.stem))  # noqa: B023
            else:
                refused(path, lambda: reopened(store))
        for broken in (b"", content[:-1], content + b"!"):
            path.write_bytes(broken)
            refused(path, lambda: reopened(store))
        path.write_bytes(content)
    name = min(names(store))
    (store.folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} is damaged .it is missing"):
        reopened(store)
