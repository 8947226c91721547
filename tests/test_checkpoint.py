"""Checkpoints: all comes back, clients that stand still cost nothing, torn ones are never read."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import fedray.checkpoint
from fedray.checkpoint import CheckpointStore
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
    assert store.load() is None


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
    store.save(Snapshot(5, server), clients.items())
    found = store.load()
    assert found.snapshot.round == 5
    assert found.snapshot.late == []
    assert_same_tree(found.snapshot.server, server)
    assert list(found.clients) == [0, 3, 11]
    for client, before in clients.items():
        for part in ("model", "memory"):
            assert_same_tree(getattr(found.clients[client], part), getattr(before, part))


def test_views_and_shared_memory_come_back_whole(store):
    base = torch.arange(12.0).reshape(3, 4)
    store.save(Snapshot(0, {"rows": base[1:], "columns": base.T, "again": base}), [])
    server = store.load().snapshot.server
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
    folder = store.save(Snapshot(1, {}), clients)
    assert (folder / "clients-00001.safetensors").stat().st_size < 3 * images.nbytes + 5000
    loaded = store.load()
    found = loaded.clients
    assert values(loaded) == {k: k for k in range(6)}
    for k in range(5):
        assert torch.equal(found[k].memory["images"], images)
        assert found[k].memory["reals"].dtype == torch.float32
        assert torch.equal(found[k].memory["reals"].view(torch.uint8), images)
    assert torch.equal(found[5].memory["images"], other)
    # The first of the equal ones steps again; the others' file still has their images.
    store.save(Snapshot(2, {}), [(0, state(0))])
    assert torch.equal(store.load().clients[4].memory["images"], images)


def test_replies_on_their_way_come_back(store):
    parcel = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2), "b": torch.ones(1)}, 12, 0.25)
    other = Parcel(torch.zeros(1, 3), {}, 1, 1.0)
    late = [LateReply(4, "client_update", 9, parcel), LateReply(2, "distil", 8, other)]
    store.save(Snapshot(7, {}, late), [])
    found = store.load().snapshot.late
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


def test_clients_that_did_not_step_are_linked_not_written(store):
    store.save(Snapshot(0, {}), [(0, state(0.0)), (1, state(0.1)), (2, state(0.2))])
    first = store.latest() / "clients-00000.safetensors"
    inode = first.stat().st_ino
    store.save(Snapshot(1, {}), [(1, state(1.1))])
    assert values(store.load()) == pytest.approx({0: 0.0, 1: 1.1, 2: 0.2})
    assert (store.latest() / first.name).stat().st_ino == inode
    store.save(Snapshot(2, {}), [(1, state(2.1)), (3, state(2.3))])
    assert values(store.load()) == pytest.approx({0: 0.0, 1: 2.1, 2: 0.2, 3: 2.3})
    names = {path.name for path in store.latest().glob("clients-*")}
    assert names == {"clients-00000.safetensors", "clients-00002.safetensors"}


def test_where_there_are_no_hard_links_files_are_copied(store, monkeypatch):
    def no_links(source, target):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    store.save(Snapshot(0, {}), [(0, state(0.0)), (1, state(0.1))])
    store.save(Snapshot(1, {}), [(1, state(1.1))])
    assert values(store.load()) == pytest.approx({0: 0.0, 1: 1.1})


def test_many_rounds_of_partial_participation(store):
    expected = {}
    for round_ in range(12):
        stepped = {client: state(round_ + client / 100) for client in (round_ % 5, round_ % 3)}
        store.save(Snapshot(round_, {}), stepped.items())
        expected |= {client: round_ + client / 100 for client in stepped}
        assert values(store.load()) == pytest.approx(expected)
    assert len(list(store.folder.iterdir())) == 1


# --- torn -------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a process does not survive."""


@pytest.mark.parametrize("file", ["clients-00001", "server", "late", "meta"])
def test_killed_while_writing_any_file(store, monkeypatch, file):
    store.save(Snapshot(0, {"v": torch.zeros(1)}), [(0, state(0.0))])

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
        store.save(Snapshot(1, {"v": torch.ones(1)}), [(0, state(1.0))])
    monkeypatch.undo()
    found = store.load()
    assert (found.snapshot.round, values(found)) == (0, {0: 0.0})
    store.save(Snapshot(1, {"v": torch.ones(1)}), [(0, state(1.0))])
    assert [path.name for path in store.folder.iterdir()] == ["round_00001"]


def test_killed_before_the_old_one_was_removed(store, monkeypatch):
    store.save(Snapshot(0, {}), [(0, state(0.0)), (1, state(0.1))])

    def dies(path, **_):
        if path.name == "round_00000":
            (path / "server.safetensors").unlink()
            raise Killed

    monkeypatch.setattr(fedray.checkpoint.shutil, "rmtree", dies)
    with pytest.raises(Killed):
        store.save(Snapshot(1, {}), [(0, state(1.0))])
    monkeypatch.undo()
    found = store.load()
    assert found.snapshot.round == 1
    assert values(found) == pytest.approx({0: 1.0, 1: 0.1})
    store.save(Snapshot(2, {}), [(1, state(2.1))])
    assert values(store.load()) == pytest.approx({0: 1.0, 1: 2.1})
    assert [path.name for path in store.folder.iterdir()] == ["round_00002"]


FILES = ["server.safetensors", "late.safetensors", "clients-00000.safetensors", "meta.json"]


@pytest.fixture
def saved(store):
    """The folder of a checkpoint with something in every file."""
    parcel = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2)}, 12, 0.25)
    late = [LateReply(4, "client_update", 9, parcel)]
    server = {"v": torch.arange(100.0), "w": torch.zeros(2)}
    return store.save(Snapshot(0, server, late), [(0, state(0.0)), (1, state(1.0))], "r" * 64)


def refused(store, name: str, reason: str = ".*") -> None:
    """The store does not read its checkpoint, and says why in one sentence."""
    message = rf"{re.escape(name)} is damaged \({reason}.*\); restore it .* start anew"
    with pytest.raises(UserError, match=message) as raised:
        store.load()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(store, saved, name):
    path = saved / name
    path.write_bytes(path.read_bytes()[:-10])
    refused(store, name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store, saved, name):
    (saved / name).unlink()
    refused(store, name, "it is missing")


@pytest.mark.parametrize("name", FILES[:3])
def test_every_flipped_bit_of_a_tensor_is_seen(store, saved, name):
    path = saved / name
    whole = path.read_bytes()
    for place in range(len(whole) - 4, len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        refused(store, name, "its content does not fit its checksum")
    path.write_bytes(whole)
    assert store.load().rounds_checksum == "r" * 64


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
        ("clients", {}),
        ("clients", {"0": FILES[2], "1": FILES[2], "2": FILES[2]}),
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
    older = (saved / "clients-00000.safetensors").read_bytes()
    newer = store.save(Snapshot(1, {}), [(0, state(9.0)), (1, state(9.1))])
    (newer / "clients-00001.safetensors").write_bytes(older)
    refused(store, "clients-00001.safetensors", "its content does not fit its checksum")


def test_linked_clients_keep_their_checksum_without_being_read(store, saved, monkeypatch):
    monkeypatch.setattr(fedray.checkpoint, "safe_open", None)
    place = store.save(Snapshot(1, {}), [(1, state(1.1))])
    files = json.loads((place / "meta.json").read_text())["files"]
    assert set(files) == {"clients-00000.safetensors", "clients-00001.safetensors", *FILES[:2]}
    monkeypatch.undo()
    assert values(store.load()) == pytest.approx({0: 0.0, 1: 1.1})
    path = place / "clients-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    refused(store, path.name)


def test_a_reply_of_a_type_that_is_gone_is_refused(store, saved, monkeypatch):
    monkeypatch.delitem(Payload.types, Parcel.full_name())
    with pytest.raises(UserError, match=r"has a reply of type \S+Parcel, which this version does"):
        store.load()


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
            store.save(Snapshot(1, {}), [(0, state(1.0))])
        monkeypatch.undo()
        assert [path.name for path in store.folder.iterdir()] == ["round_00000"]
    assert store.load().snapshot.round == 0


# --- whose ------------------------------------------------------------------------------------


def test_another_experiment_s_is_refused(store, tmp_path):
    store.save(Snapshot(0, {}), [])
    with pytest.raises(UserError, match="belongs to another experiment"):
        CheckpointStore(tmp_path, "another experiment").load()


def test_another_format_is_refused(store, monkeypatch):
    store.save(Snapshot(0, {}), [])
    monkeypatch.setattr(fedray.checkpoint, "FORMAT", 99)
    with pytest.raises(UserError, match="checkpoint format 3, this version reads 99"):
        store.load()


def test_a_client_is_read_from_the_file_that_it_was_last_written_to(store):
    store.save(Snapshot(99_999, {}), [(0, state(0.0)), (1, state(0.1))])
    store.save(Snapshot(100_000, {}), [(1, state(1.1))])  # by its name before the older file
    assert values(store.load()) == pytest.approx({0: 0.0, 1: 1.1})
