"""One federated checkpoint: the server, every client and replies on their way, as of one round.

    <out>/checkpoints/round_00007/
        meta.json               round, experiment, which file holds which client
        server.safetensors
        clients-00007.safetensors   the clients that stepped since the last checkpoint
        clients-00003.safetensors   a hard link: clients that have not stepped since round 3

A checkpoint is written beside its place and renamed, so a torn one has no final name. A file holds
a tree of tensors: its header says how they are nested, in their order, and which are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedray.core import ClientState, Payload, StateTree
from fedray.errors import UserError
from fedray.federation import LateReply, Snapshot
from fedray.files import write_json

FORMAT = 2
LARGE = 2**12
"""Bytes from which on tensors with the same content are stored once."""
_STRUCTURE = "structure"


@dataclass(frozen=True)
class Checkpoint:
    """What was read back.

    Attributes:
        snapshot: the federation's state.
        clients: states by client id; a client that never stepped is not in it.
    """

    snapshot: Snapshot
    clients: Mapping[int, ClientState]


class CheckpointStore:
    """The checkpoints of one run; only the latest is kept.

    Args:
        out: the run's folder.
        identity: hash of the experiment; a checkpoint of another one is refused.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.folder = out / "checkpoints"
        self.identity = identity

    def latest(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        found = sorted(self.folder.glob("round_*/meta.json"))
        return found[-1].parent if found else None

    def save(self, snapshot: Snapshot, stepped: Iterable[tuple[int, ClientState]]) -> Path:
        """Write a checkpoint of `snapshot` and remove the one before.

        Args:
            snapshot: the federation's state.
            stepped: states of the clients that stepped since the last checkpoint.

        Returns:
            The checkpoint's folder.
        """
        place = self.folder / f"round_{snapshot.round:05d}"
        temporary = self.folder / f".round_{snapshot.round:05d}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        where = self._write_clients(snapshot.round, stepped, place, temporary)
        _write(snapshot.server, temporary / "server.safetensors")
        late, payloads = _flatten(snapshot.late)
        _write(payloads, temporary / "late.safetensors")
        meta = {
            "format": FORMAT,
            "identity": self.identity,
            "round": snapshot.round,
            "clients": where,
            "late": late,
        }
        write_json(temporary / "meta.json", meta)
        for file in (*temporary.iterdir(), temporary):
            _sync(file)
        shutil.rmtree(place, ignore_errors=True)
        os.replace(temporary, place)
        _sync(self.folder)
        self.tidy()
        return place

    def tidy(self) -> None:
        """Remove all but the latest checkpoint: what a process left that was killed in `save`."""
        latest = self.latest()
        for old in self.folder.iterdir() if self.folder.is_dir() else ():
            if old != latest:
                shutil.rmtree(old, ignore_errors=True)

    def _write_clients(
        self,
        round_: int,
        stepped: Iterable[tuple[int, ClientState]],
        place: Path,
        temporary: Path,
    ) -> dict[str, str]:
        """Write the states that are new, link the files of the others; which file holds whom."""
        before, new = self.latest(), f"clients-{round_:05d}.safetensors"
        states = {str(c): {"model": s.model, "memory": s.memory} for c, s in stepped}
        _write(states, temporary / new)
        where = dict.fromkeys(states, new)
        if before is not None and before != place:
            for client, name in _meta(before)["clients"].items():
                where.setdefault(client, name)
            for name in set(where.values()) - {new}:
                _link(before / name, temporary / name)
        return where

    def load(self) -> Checkpoint | None:
        """Read the newest checkpoint; None when there is none yet.

        Raises:
            UserError: when it belongs to another experiment or another version's format, or when
                its files are damaged.
        """
        place = self.latest()
        if place is None:
            return None
        meta = _meta(place)
        if meta["format"] != FORMAT:
            raise UserError(
                f"{place} has checkpoint format {meta['format']}, this version reads {FORMAT}; "
                "start anew with another --out"
            )
        if meta["identity"] != self.identity:
            raise UserError(
                f"{place} belongs to another experiment or other data; pass the experiment and "
                f"keys that {place.parent.parent / 'config.yaml'} shows, or another --out"
            )
        states: dict[int, ClientState] = {}
        for name in sorted(set(meta["clients"].values())):
            for client, tree in _read(place / name).items():
                if meta["clients"].get(client) == name:
                    states[int(client)] = ClientState(tree["model"], tree["memory"])
        snapshot = Snapshot(
            round=meta["round"],
            server=_read(place / "server.safetensors"),
            late=_unflatten(meta["late"], _read(place / "late.safetensors")),
        )
        return Checkpoint(snapshot, dict(sorted(states.items())))


def _meta(place: Path) -> dict[str, Any]:
    path = place / "meta.json"
    try:
        meta: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    return meta


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} is damaged ({error}); start anew with another --out, "
        f"or remove {path.parents[1]} to begin this run again"
    )


def _link(source: Path, target: Path) -> None:
    """A hard link; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _sync(path: Path) -> None:
    """Have a file or folder on the disk, so that it is whole after a node went down."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(tree: StateTree, path: Path) -> None:
    """Write a tree of tensors; of large ones with the same content, the first alone.

    Clients often keep what all of them were sent (DP2FL: everybody's validation images).
    """
    stored: dict[str, Tensor] = {}
    known: dict[tuple[object, ...], str] = {}

    def store(tensor: Tensor, path: tuple[str, ...]) -> str:
        kept = tensor.detach().cpu().contiguous()
        if kept.nbytes >= LARGE:
            content = hashlib.blake2b(kept.view(torch.uint8).numpy().data).digest()
            key = (kept.dtype, kept.shape, content)
            if key in known:
                return known[key]
            known[key] = _unused("/".join(path), stored)
            name = known[key]
        else:
            name = _unused("/".join(path), stored)
        stored[name] = kept.clone()  # safetensors refuses tensors that share memory
        return name

    def structure(branch: StateTree, path: tuple[str, ...]) -> dict[str, Any]:
        return {
            key: structure(value, (*path, key))
            if isinstance(value, Mapping)
            else store(value, (*path, key))
            for key, value in branch.items()
        }

    nested = structure(tree, ())
    save_file(stored, path, {_STRUCTURE: json.dumps(nested)})


def _unused(name: str, taken: Mapping[str, Tensor]) -> str:
    """A name that no tensor has: keys may hold the slash that joins them."""
    while name in taken:
        name += "'"
    return name


def _read(path: Path) -> dict[str, Any]:
    """What `_write` wrote, in its order; equal large tensors share their memory."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            structure = json.loads(file.metadata()[_STRUCTURE])
        return _nested(structure, found)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from None


def _nested(structure: Mapping[str, Any], found: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        key: _nested(value, found) if isinstance(value, Mapping) else found[value]
        for key, value in structure.items()
    }


def _flatten(late: Iterable[LateReply]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Split late replies into plain data and trees of tensors."""
    plain: list[dict[str, Any]] = []
    trees: dict[str, Any] = {}
    for index, item in enumerate(late):
        fields = {f.name: getattr(item.uplink, f.name) for f in dataclasses.fields(item.uplink)}
        trees[str(index)] = {
            name: value for name, value in fields.items() if isinstance(value, Tensor | Mapping)
        }
        numbers = {name: value for name, value in fields.items() if name not in trees[str(index)]}
        plain.append(
            {
                "client": item.client,
                "step": item.step,
                "due": item.due,
                "type": item.uplink.full_name(),
                "numbers": numbers,
            }
        )
    return plain, trees


def _unflatten(plain: list[dict[str, Any]], trees: Mapping[str, Any]) -> list[LateReply]:
    late = []
    for index, item in enumerate(plain):
        uplink = Payload.types[item["type"]](**item["numbers"], **trees[str(index)])
        late.append(LateReply(item["client"], item["step"], item["due"], uplink))
    return late
