"""Checkpoints: all comes back, clients that stand still cost nothing, torn ones are never read."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fedray.core import ClientState, Payload, sent
from fedray.core.payload import join_payload, split_payload
from fedray.errors import UserError
from fedray.storage import database
from fedray.storage.checkpoint import Checkpoint, CheckpointStore
from fedray.storage.database import StateDatabase
from fedray.trees import Snapshot


class Parcel(Payload):
    """A payload with a tensor, named tensors, an integer and a float."""

    vectors = sent("prototypes", axes="n d")
    weights = sent("weights")
    samples = sent("statistics", number=int)
    tau = sent("statistics", number=float)


def state(value: float, **memory: Any) -> ClientState:
    return ClientState({"fc.weight": torch.full((2, 3), value), "steps": torch.tensor(7)}, memory)


def save(store, snapshot, stepped=(), rounds_checksum="") -> None:
    """A checkpoint after these clients have stepped."""
    for client, stepped_state in stepped:
        store.states.put(client, stepped_state)
    store.begin(snapshot, rounds_checksum)
    store.wait()


def load(store) -> Checkpoint | None:
    """What a process that comes later reads."""
    return CheckpointStore(store.folder.parent, store.identity).load()


def files_of(store) -> set[str]:
    """The names of the files of large states."""
    folder = store.states.folder
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def values(found) -> dict[int, float]:
    """Each client's weight, as `state` made it."""
    return {client: float(s.model["fc.weight"][0, 0]) for client, s in found.clients.items()}


def assert_same_tree(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Equal names in the same order, equal tensors of the same type, at every level."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, Mapping):
            assert_same_tree(found[name], value)
        else:
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path, "this experiment")


def test_before_the_first_there_is_none(store):
    assert load(store) is None


def test_everything_comes_back(store):
    server = {
        "vectors": torch.randn(4, 3),
        "present": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(3).bfloat16(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "model": {"z.weight": torch.randn(2), "a.weight": torch.randn(2)},
        "nothing": {},
    }
    clients = {
        3: state(1.5, control={"a/b": {"c": torch.randn(2)}, "a": {"b/c": torch.randn(2)}}),
        0: state(-2.0),
        11: ClientState({}),
    }
    save(store, Snapshot(5, server), clients.items())
    found = load(store)
    assert found.snapshot.round == 5
    assert_same_tree(found.snapshot.server, server)
    assert list(found.clients) == [0, 3, 11]
    for client, before in clients.items():
        for part in ("model", "memory"):
            assert_same_tree(getattr(found.clients[client], part), getattr(before, part))


def test_a_payload_comes_back_with_its_types(tmp_path):
    before = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2), "b": torch.ones(1)}, 12, 0.25)
    after = join_payload(*split_payload(before), tmp_path)
    assert type(after) is Parcel
    assert torch.equal(after.vectors, before.vectors)
    assert after.weights.keys() == before.weights.keys()
    for name, tensor in before.weights.items():
        assert torch.equal(after.weights[name], tensor)
    assert (after.samples, after.tau) == (before.samples, before.tau)
    assert type(after.samples) is int


# --- files that come and go -------------------------------------------------------------------


def large(value: float) -> ClientState:
    return ClientState({"fc.weight": torch.full((200, 200), value)})


def test_nothing_grows_with_the_rounds(store):
    sizes = []
    for round_ in range(60):
        stepped = [(client, state(round_)) for client in (round_ % 6, (round_ + 3) % 6)]
        stepped.append((6 + round_ % 2, large(round_)))
        save(store, Snapshot(round_, {}), stepped)
        sizes.append(sum(path.stat().st_size for path in store.folder.rglob("*")))
    assert max(sizes[30:]) <= max(sizes[:30])
    assert len(load(store).clients) == 8


# --- torn -------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a process does not survive."""


@pytest.mark.parametrize("moment", ["sync", "tree_to_bytes", "write_tree", "sealed"])
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
def test_stopped_while_it_is_written(store, monkeypatch, moment, error):
    save(store, Snapshot(0, {"v": torch.zeros(1)}), [(0, state(0.0)), (1, large(0.1))])

    def dies(*args):
        raise error

    monkeypatch.setattr(database, moment, dies)
    with pytest.raises(type(error)):
        save(store, Snapshot(1, {"v": torch.ones(1)}), [(0, state(1.0)), (1, large(1.1))])
    monkeypatch.undo()
    found = load(store)
    assert (found.snapshot.round, values(found)) == (0, pytest.approx({0: 0.0, 1: 0.1}))
    later = CheckpointStore(store.folder.parent, store.identity)
    later.load()
    later.tidy()
    save(later, Snapshot(1, {}), [(1, large(1.1))])
    assert values(load(store)) == pytest.approx({0: 0.0, 1: 1.1})
    assert len(files_of(store)) == 1


def test_killed_before_replaced_files_were_removed(store, monkeypatch):
    save(store, Snapshot(0, {}), [(0, large(0.0)), (1, state(0.1))])

    def dies(*args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(StateDatabase, "_remove_file", dies)
        with pytest.raises(Killed):
            save(store, Snapshot(1, {}), [(0, large(1.0))])
    assert len(files_of(store)) == 2
    later = CheckpointStore(store.folder.parent, store.identity)
    found = later.load()
    assert found.snapshot.round == 1
    assert values(found) == pytest.approx({0: 1.0, 1: 0.1})
    later.tidy()
    assert len(files_of(store)) == 1


def test_a_first_checkpoint_that_was_never_whole_is_none(store, monkeypatch):
    def dies(*args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(database, "sealed", dies)
        with pytest.raises(Killed):
            save(store, Snapshot(0, {}), [(0, state(0.0))])
    assert load(store) is None
    assert store.latest() is None


def test_a_payload_of_a_type_that_is_gone_is_refused(tmp_path, monkeypatch):
    split = split_payload(Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2)}, 12, 0.25))
    monkeypatch.delitem(Payload.types, Parcel.full_name())
    with pytest.raises(UserError, match=r"holds a payload of type \S+Parcel, which this version"):
        join_payload(*split, tmp_path)


# --- whose ------------------------------------------------------------------------------------


def test_another_experiment_s_is_refused(store, tmp_path):
    save(store, Snapshot(0, {}), [])
    with pytest.raises(UserError, match="belongs to another experiment"):
        CheckpointStore(tmp_path, "another experiment").load()


def test_a_cleared_one_leaves_what_others_put_there(store):
    save(store, Snapshot(0, {}), [(0, large(0.0))])
    (store.folder / "mine.txt").touch()
    store.clear()
    assert [path.name for path in store.folder.iterdir()] == ["mine.txt"]
    assert store.load() is None
