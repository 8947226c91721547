"""Checkpoints: all comes back, clients that stand still cost nothing, torn ones are never read."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import fedray.checkpoint
import fedray.states.index
import fedray.states.store
from fedray.checkpoint import Checkpoint, CheckpointStore
from fedray.core import ClientState, Payload, payload_field
from fedray.errors import UserError
from fedray.federation import LateReply, Snapshot


@dataclass(frozen=True)
class Parcel(Payload):
    """A payload with a tensor, named tensors, an integer and a float."""

    vectors: Tensor = payload_field("prototypes", "n d")
    weights: Mapping[str, Tensor] = payload_field("weights")
    samples: int = payload_field("statistics")
    tau: float = payload_field("statistics")


def state(value: float, **memory: Any) -> ClientState:
    return ClientState({"fc.weight": torch.full((2, 3), value), "steps": torch.tensor(7)}, memory)


def save(store, snapshot, stepped=(), rounds_checksum="") -> Path:
    """A checkpoint after these clients have stepped."""
    for client, stepped_state in stepped:
        store.states.put(client, stepped_state)
    store.begin(snapshot, rounds_checksum)
    store.wait()
    return store.folder / f"round_{snapshot.round:05d}"


def load(store) -> Checkpoint | None:
    """What a process that comes later reads."""
    return CheckpointStore(store.folder.parent, store.identity).load()


def files_of(store) -> dict[str, int]:
    """The files of states and the index, by name, with their sizes."""
    return {path.name: path.stat().st_size for path in store.states.folder.iterdir()}


def state_file(store, suffix=".states") -> Path:
    """The one file of states, or the index."""
    (path,) = store.states.folder.glob(f"*{suffix}")
    return path


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
    assert found.snapshot.late == []
    assert_same_tree(found.snapshot.server, server)
    assert list(found.clients) == [0, 3, 11]
    for client, before in clients.items():
        for part in ("model", "memory"):
            assert_same_tree(getattr(found.clients[client], part), getattr(before, part))


def test_views_and_shared_memory_come_back_whole(store):
    base = torch.arange(12.0).reshape(3, 4)
    save(store, Snapshot(0, {"rows": base[1:], "columns": base.T, "again": base}), [])
    server = load(store).snapshot.server
    assert torch.equal(server["rows"], base[1:])
    assert torch.equal(server["columns"], base.T)
    assert torch.equal(server["again"], base)


def test_what_several_clients_keep_is_stored_once(store):
    images = torch.arange(2**18, dtype=torch.int32).remainder(251).to(torch.uint8).view(4, 4, -1)
    shared = {"images": images, "reals": images.view(torch.float32)}  # same bytes, another kind
    clients = [
        (k, state(k, **{name: value.clone() for name, value in shared.items()})) for k in range(5)
    ]
    other = images.clone()
    other[-1, -1, -1] += 1
    clients.append((5, state(5, images=other)))
    save(store, Snapshot(1, {}), clients)
    assert sum(files_of(store).values()) < 3 * images.nbytes + 12_000
    loaded = load(store)
    found = loaded.clients
    assert values(loaded) == {k: k for k in range(6)}
    for k in range(5):
        assert torch.equal(found[k].memory["images"], images)
        assert found[k].memory["reals"].dtype == torch.float32
        assert torch.equal(found[k].memory["reals"].view(torch.uint8), images)
    assert torch.equal(found[5].memory["images"], other)
    # The first of the equal ones steps again; the others' file still has their images.
    save(store, Snapshot(2, {}), [(0, state(0))])
    assert torch.equal(load(store).clients[4].memory["images"], images)


def test_replies_on_their_way_come_back(store):
    parcel = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2), "b": torch.ones(1)}, 12, 0.25)
    other = Parcel(torch.zeros(1, 3), {}, 1, 1.0)
    late = [LateReply(4, "client_update", 9, parcel), LateReply(2, "distil", 8, other)]
    save(store, Snapshot(7, {}, late), [])
    found = load(store).snapshot.late
    assert [(item.client, item.step, item.due) for item in found] == [
        (4, "client_update", 9),
        (2, "distil", 8),
    ]
    for before, after in zip(late, found, strict=True):
        assert type(after.uplink) is Parcel
        assert torch.equal(after.uplink.vectors, before.uplink.vectors)
        assert after.uplink.weights.keys() == before.uplink.weights.keys()
        for name, tensor in before.uplink.weights.items():
            assert torch.equal(after.uplink.weights[name], tensor)
        assert (after.uplink.samples, after.uplink.tau) == (
            before.uplink.samples,
            before.uplink.tau,
        )
        assert type(after.uplink.samples) is int


# --- clients that did not step ----------------------------------------------------------------


def test_clients_that_did_not_step_are_not_written_again(store):
    save(store, Snapshot(0, {}), [(0, state(0.0)), (1, state(0.1)), (2, state(0.2))])
    first = state_file(store)
    was = first.stat()
    save(store, Snapshot(1, {}), [(1, state(1.1))])
    assert values(load(store)) == pytest.approx({0: 0.0, 1: 1.1, 2: 0.2})
    assert (first.stat().st_ino, first.stat().st_mtime) == (was.st_ino, was.st_mtime)
    save(store, Snapshot(2, {}), [(1, state(2.1)), (3, state(2.3))])
    assert values(load(store)) == pytest.approx({0: 0.0, 1: 2.1, 2: 0.2, 3: 2.3})
    assert len(files_of(store)) == 3  # round 0's, round 2's, the index


def test_a_file_of_little_use_is_left_by_those_in_it(store):
    save(store, Snapshot(0, {}), [(client, state(client)) for client in range(4)])
    first = state_file(store)
    for round_ in (1, 2, 3):
        save(store, Snapshot(round_, {}), [(round_, state(10.0 * round_))])
        assert first.exists()
    save(store, Snapshot(4, {}), [])
    assert not first.exists()
    assert values(load(store)) == pytest.approx({0: 0.0, 1: 10.0, 2: 20.0, 3: 30.0})


def large(value: float) -> ClientState:
    return ClientState({"fc.weight": torch.full((200, 200), value)})


def test_a_large_state_has_a_file_that_goes_with_it(store):
    save(store, Snapshot(0, {}), [(client, large(client)) for client in range(3)])
    before = files_of(store)
    assert len(before) == 4
    save(store, Snapshot(1, {}), [(1, large(9.0))])
    after = files_of(store)
    assert len(after) == 4
    assert len(after.keys() & before.keys()) == 3
    assert values(load(store)) == {0: 0.0, 1: 9.0, 2: 2.0}


def test_many_rounds_of_partial_participation(store):
    expected = {}
    for round_ in range(12):
        stepped = {client: state(round_ + client / 100) for client in (round_ % 5, round_ % 3)}
        save(store, Snapshot(round_, {}), stepped.items())
        expected |= {client: round_ + client / 100 for client in stepped}
        assert values(load(store)) == pytest.approx(expected)
    assert [path.name for path in store.folder.glob("round_*")] == ["round_00011"]
    assert len(files_of(store)) < 8


def test_neither_files_nor_the_index_grow_with_the_rounds(store, monkeypatch):
    monkeypatch.setattr(fedray.states.index, "SPARE", 8)
    sizes = []
    for round_ in range(60):
        stepped = [(client, state(round_)) for client in (round_ % 6, (round_ + 3) % 6)]
        stepped.append((6 + round_ % 2, large(round_)))
        save(store, Snapshot(round_, {}), stepped)
        sizes.append(sum(files_of(store).values()))
    assert max(sizes[30:]) <= 1.3 * max(sizes[:30])
    assert len(load(store).clients) == 8


# --- torn -------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a process does not survive."""


@pytest.mark.parametrize("file", ["server", "late", "meta"])
def test_killed_while_writing_any_file(store, monkeypatch, file):
    save(store, Snapshot(0, {"v": torch.zeros(1)}), [(0, state(0.0))])

    save_file, write_json = fedray.checkpoint.save_file, fedray.checkpoint.write_json

    def dies_at(path):
        if file in path.name:
            path.write_bytes(b"{ half of")
            raise Killed

    def save_or_die(tensors, path, metadata):
        dies_at(path)
        save_file(tensors, path, metadata)

    def write_or_die(path, data):
        dies_at(path)
        write_json(path, data)

    monkeypatch.setattr(fedray.checkpoint, "save_file", save_or_die)
    monkeypatch.setattr(fedray.checkpoint, "write_json", write_or_die)
    with pytest.raises(Killed):
        save(store, Snapshot(1, {"v": torch.ones(1)}), [(0, state(1.0))])
    monkeypatch.undo()
    found = load(store)
    assert (found.snapshot.round, values(found)) == (0, {0: 0.0})
    save(store, Snapshot(1, {"v": torch.ones(1)}), [(0, state(1.0))])
    CheckpointStore(store.folder.parent, store.identity).tidy()
    assert rounds_of(store) == ["round_00001"]


@pytest.mark.parametrize("moment", ["the states", "the disk", "the index"])
def test_killed_while_states_are_written(store, monkeypatch, moment):
    save(store, Snapshot(0, {}), [(0, state(0.0)), (1, large(0.1))])

    def dies(*args):
        raise Killed

    place = {
        "the states": (fedray.states.store.SegmentWriter, "add"),
        "the index": (fedray.states.index.IndexLog, "facts"),
        "the disk": (fedray.states.store, "sync"),
    }[moment]
    monkeypatch.setattr(*place, dies)
    with pytest.raises(Killed):
        save(store, Snapshot(1, {}), [(0, state(1.0)), (1, large(1.1))])
    monkeypatch.undo()
    found = load(store)
    assert (found.snapshot.round, values(found)) == (0, pytest.approx({0: 0.0, 1: 0.1}))
    later = CheckpointStore(store.folder.parent, store.identity)
    later.load()
    later.tidy()
    save(later, Snapshot(1, {}), [(1, large(1.1))])
    assert values(load(store)) == pytest.approx({0: 0.0, 1: 1.1})
    assert len(files_of(store)) == 3


def rounds_of(store) -> list[str]:
    return [path.name for path in store.folder.iterdir() if path != store.states.folder]


def test_killed_before_the_old_one_was_removed(store, monkeypatch):
    save(store, Snapshot(0, {}), [(0, state(0.0)), (1, state(0.1))])

    def dies(path, **_):
        if path.name == "round_00000":
            (path / "server.safetensors").unlink()
            raise Killed

    monkeypatch.setattr(fedray.checkpoint.shutil, "rmtree", dies)
    with pytest.raises(Killed):
        save(store, Snapshot(1, {}), [(0, state(1.0))])
    monkeypatch.undo()
    found = load(store)
    assert found.snapshot.round == 1
    assert values(found) == pytest.approx({0: 1.0, 1: 0.1})
    save(store, Snapshot(2, {}), [(1, state(2.1))])
    assert values(load(store)) == pytest.approx({0: 1.0, 1: 2.1})
    assert rounds_of(store) == ["round_00002"]


FILES = ["server.safetensors", "late.safetensors", ".states", ".jsonl", "meta.json"]


def file_of(store, name: str) -> Path:
    """A file of the last checkpoint; of the states and their index by the suffix."""
    return state_file(store, name) if name.startswith(".") else store.latest() / name


@pytest.fixture
def saved(store):
    """The folder of a checkpoint with something in every file."""
    parcel = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2)}, 12, 0.25)
    late = [LateReply(4, "client_update", 9, parcel)]
    server = {"v": torch.arange(100.0), "w": torch.zeros(2)}
    return save(store, Snapshot(0, server, late), [(0, state(0.0)), (1, state(1.0))], "r" * 64)


def refused(store, name: str, reason: str = ".*") -> None:
    """The store does not read its checkpoint, and says why in one sentence."""
    message = rf"{re.escape(name)} is damaged \({reason}.*\); restore it .* start anew"
    with pytest.raises(UserError, match=message) as raised:
        load(store)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(store, saved, name):
    path = file_of(store, name)
    path.write_bytes(path.read_bytes()[:-10])
    refused(store, path.name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store, saved, name):
    path = file_of(store, name)
    path.unlink()
    refused(store, path.name, "it is missing")


@pytest.mark.parametrize("name", FILES[:2])
def test_every_flipped_bit_of_a_tensor_is_seen(store, saved, name):
    path = saved / name
    whole = path.read_bytes()
    for place in range(len(whole) - 4, len(whole)):
        flip(path, whole, place)
        refused(store, name, "its content does not fit its checksum")
    path.write_bytes(whole)
    assert load(store).rounds_checksum == "r" * 64


@pytest.mark.parametrize("name", FILES[2:4])
def test_every_flipped_bit_of_a_state_and_of_the_index_is_seen(store, saved, name):
    path = file_of(store, name)
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, whole, place)
        refused(store, path.name, "its content does not fit its checksum")
    path.write_bytes(whole)
    assert values(load(store)) == {0: 0.0, 1: 1.0}


def test_a_flipped_bit_of_what_others_share_is_seen(store):
    images = torch.arange(2**15, dtype=torch.int32)
    save(store, Snapshot(0, {}), [(k, state(k, images=images.clone())) for k in range(2)])
    small, big = sorted(store.states.folder.glob("*.states"), key=lambda path: path.stat().st_size)
    assert 100 * small.stat().st_size < big.stat().st_size
    whole = big.read_bytes()
    flip(big, whole, len(whole) - 1)
    refused(store, big.name, "its content does not fit its checksum")


def flip(path: Path, whole: bytes, place: int) -> None:
    """Write a file with one bit flipped."""
    flipped = bytearray(whole)
    flipped[place] ^= 1
    path.write_bytes(flipped)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {("u" if name == "v" else name): t for name, t in tensors.items()},
        lambda tensors: tensors | {"v": tensors["v"].reshape(10, 10)},
        lambda tensors: tensors | {"v": tensors["v"].view(torch.int32)},
        lambda tensors: tensors | {"more": torch.zeros(1)},
        lambda tensors: {"v": tensors["v"]},
    ],
    ids=["name", "shape", "type", "more", "less"],
)
def test_names_shapes_and_types_of_tensors_are_checked(store, saved, change):
    path = saved / "server.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(change(tensors), path, header)
    refused(store, path.name, "its content does not fit its checksum")


def test_the_order_of_tensors_is_checked(store, saved):
    path = saved / "server.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    assert header == {"structure": '{"v": "v", "w": "w"}'}
    save_file(tensors, path, {"structure": '{"w": "w", "v": "v"}'})
    refused(store, path.name, "its content does not fit its checksum")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", 1),
        ("index", {}),
        ("index", {"file": "another", "bytes": 0, "checksum": "s" * 64}),
        ("late", []),
        ("files", {}),
        ("rounds_checksum", "s" * 64),
        ("checksum", "s" * 64),
    ],
)
def test_what_meta_json_says_is_checked(store, saved, key, value):
    path = saved / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    refused(store, "meta.json", "its content does not fit its checksum")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "3", "NaN", "\x00\xff", '{"round": NaN}', DEEP]
)
def test_what_is_no_meta_json_is_refused(store, saved, content):
    (saved / "meta.json").write_text(content, encoding="latin-1")
    refused(store, "meta.json")


def test_a_checkpoint_that_is_called_like_another_rounds_is_refused(store, saved):
    saved.rename(saved.with_name("round_00007"))
    refused(store, "meta.json", "it is that of round 0")


def test_a_file_of_an_older_checkpoint_is_refused(store, saved):
    older = state_file(store).read_bytes()
    save(store, Snapshot(1, {}), [(0, state(9.0)), (1, state(9.1))])
    state_file(store).write_bytes(older)
    refused(store, state_file(store).name, "its content does not fit its checksum")


def test_states_keep_their_checksum_without_being_read(store, saved, monkeypatch):
    first = state_file(store)
    flip(first, first.read_bytes(), 0)
    save(store, Snapshot(1, {}), [(1, state(1.1))])
    refused(store, first.name)


def test_a_reply_of_a_type_that_is_gone_is_refused(store, saved, monkeypatch):
    monkeypatch.delitem(Payload.types, Parcel.full_name())
    with pytest.raises(UserError, match=r"holds a payload of type \S+Parcel, which this version"):
        load(store)


def test_the_newest_is_the_one_of_the_highest_round(store):
    for round_ in (99_999, 100_000):
        (store.folder / f"round_{round_:05d}").mkdir(parents=True)
    assert store.latest().name == "round_100000"


def test_a_disk_without_room_leaves_the_one_before_and_nothing_else(store, saved, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("save_file", "write_json", "sync"):
        monkeypatch.setattr(fedray.checkpoint, name, full)
        with pytest.raises(OSError, match="No space"):
            save(store, Snapshot(1, {}), [(0, state(1.0))])
        monkeypatch.undo()
        assert rounds_of(store) == ["round_00000"]
        assert values(load(store)) == {0: 0.0, 1: 1.0}
    save(store, Snapshot(1, {}), [(0, state(2.0))])
    found = load(store)
    assert (found.snapshot.round, values(found)) == (1, {0: 2.0, 1: 1.0})
    assert len(files_of(store)) == 3


@pytest.mark.parametrize("round_", [0, 1])
def test_a_name_that_may_not_last_is_taken_back(store, saved, monkeypatch, round_):
    sync = fedray.checkpoint.sync

    def full_for_names(path):
        if path == store.folder:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    monkeypatch.setattr(fedray.checkpoint, "sync", full_for_names)
    with pytest.raises(OSError, match="No space"):
        save(store, Snapshot(round_, {}), [(0, state(1.0))])
    monkeypatch.undo()
    assert rounds_of(store) == ["round_00000"]
    assert values(load(store)) == {0: 0.0, 1: 1.0}
    save(store, Snapshot(round_, {}), [(0, state(2.0))])
    assert values(load(store)) == {0: 2.0, 1: 1.0}


# --- whose ------------------------------------------------------------------------------------


def test_another_experiment_s_is_refused(store, tmp_path):
    save(store, Snapshot(0, {}), [])
    with pytest.raises(UserError, match="belongs to another experiment"):
        CheckpointStore(tmp_path, "another experiment").load()


@pytest.mark.parametrize(
    ("name", "module", "function", "error"),
    [
        (".states", os, "open", PermissionError(errno.EACCES, "Permission denied")),
        # safetensors says this of a file that it may not read
        ("server.safetensors", fedray.checkpoint, "safe_open", FileNotFoundError("No such file")),
    ],
)
def test_a_file_that_others_may_not_read_is_not_called_missing(
    store, saved, monkeypatch, name, module, function, error
):
    path, opened = file_of(store, name), getattr(module, function)

    def refuse(file, *args, **kwargs):
        if Path(file) == path:
            raise error
        return opened(file, *args, **kwargs)

    monkeypatch.setattr(module, function, refuse)
    with pytest.raises(UserError, match=rf"{path.name} may not be read by this account; ask its"):
        load(store)


def test_another_format_is_refused(store, monkeypatch):
    save(store, Snapshot(0, {}), [])
    monkeypatch.setattr(fedray.checkpoint, "FORMAT", 99)
    with pytest.raises(UserError, match=r"^\S+_00000 has format 4, this version reads 99; go"):
        load(store)
