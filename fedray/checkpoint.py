"""One federated checkpoint: the server, every client and replies on their way, as of one round.

    <out>/checkpoints/round_00007/
        meta.json               round, experiment, which file holds which client
        server.safetensors
        clients-00007.safetensors   the clients that stepped since the last checkpoint
        clients-00003.safetensors   a hard link: clients that have not stepped since round 3

A checkpoint is written beside its place and renamed, so a torn one has no final name.
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

from fedray.client import ClientState
from fedray.comm import Payload
from fedray.errors import UserError
from fedray.federation import LateReply, Snapshot
from fedray.files import write_json

FORMAT = 1
LARGE = 2**12
"""Bytes from which on tensors with the same content are stored once."""
_SAME = "same"


@dataclass(frozen=True)
class Checkpoint:
    """What was read back.

    Attributes:
        snapshot: the federation's state.
        clients: states by client id; a client that never stepped is not in it.
        extra: what the writer added to meta.json.
    """

    snapshot: Snapshot
    clients: Mapping[int, ClientState]
    extra: Mapping[str, Any]


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

    def save(
        self,
        snapshot: Snapshot,
        stepped: Iterable[tuple[int, ClientState]],
        extra: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint of `snapshot` and remove the one before.

        Args:
            snapshot: the federation's state.
            stepped: states of the clients that stepped since the last checkpoint.
            extra: plain data that comes back with `load`.

        Returns:
            The checkpoint's folder.
        """
        before = self.latest()
        place = self.folder / f"round_{snapshot.round:05d}"
        temporary = self.folder / f".round_{snapshot.round:05d}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        tensors: dict[str, Tensor] = {}
        new = f"clients-{snapshot.round:05d}.safetensors"
        where: dict[str, str] = {}
        for client, state in stepped:
            where[str(client)] = new
            tensors |= {f"{client}/model/{k}": v for k, v in state.model.items()}
            tensors |= {f"{client}/memory/{k}": v for k, v in state.memory.items()}
        _write(tensors, temporary / new)
        if before is not None and before != place:
            for client_id, name in _meta(before)["clients"].items():
                where.setdefault(client_id, name)
            for name in set(where.values()) - {new}:
                _link(before / name, temporary / name)
        _write(snapshot.server, temporary / "server.safetensors")
        late, payloads = _flatten(snapshot.late)
        _write(payloads, temporary / "late.safetensors")
        meta = {
            "format": FORMAT,
            "identity": self.identity,
            "round": snapshot.round,
            "clients": where,
            "late": late,
            "extra": dict(extra),
        }
        write_json(temporary / "meta.json", meta)
        for file in (*temporary.iterdir(), temporary):
            _sync(file)
        shutil.rmtree(place, ignore_errors=True)
        os.replace(temporary, place)
        _sync(self.folder)
        for old in self.folder.iterdir():
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
        return place

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
                f"{place} belongs to another experiment; pass the experiment and keys that "
                f"{place.parent.parent / 'config.yaml'} shows, or another --out"
            )
        states = {int(client): ClientState({}) for client in meta["clients"]}
        for name in sorted(set(meta["clients"].values())):
            wanted = {int(c) for c, file in meta["clients"].items() if file == name}
            for key, tensor in _read(place / name).items():
                client_id, part, tensor_name = key.split("/", 2)
                if int(client_id) in wanted:
                    getattr(states[int(client_id)], part)[tensor_name] = tensor
        snapshot = Snapshot(
            round=meta["round"],
            server=_read(place / "server.safetensors"),
            late=_unflatten(meta["late"], _read(place / "late.safetensors")),
        )
        return Checkpoint(snapshot, dict(sorted(states.items())), meta["extra"])


def _meta(place: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((place / "meta.json").read_text())
    return meta


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


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file of tensors; of large ones with the same content, the first alone.

    Clients often keep what all of them were sent (DP2FL: everybody's validation images).
    """
    first: dict[tuple[object, ...], str] = {}
    same: dict[str, str] = {}
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        if own.nbytes >= LARGE:
            content = hashlib.blake2b(own.view(torch.uint8).numpy().data).digest()
            earlier = first.setdefault((own.dtype, own.shape, content), name)
            if earlier != name:
                same[name] = earlier
                continue
        stored[name] = own.clone()  # safetensors refuses tensors that share memory
    save_file(stored, path, {_SAME: json.dumps(same)} if same else None)


def _read(path: Path) -> dict[str, Tensor]:
    """What `_write` wrote; names with the same content share their memory."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            same: dict[str, str] = json.loads((file.metadata() or {}).get(_SAME, "{}"))
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} is damaged ({error}); start anew with another --out, "
            f"or remove {path.parents[1]} to begin this run again"
        ) from None
    return found | {name: found[earlier] for name, earlier in same.items()}


def _flatten(late: Iterable[LateReply]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Split late replies into plain data and tensors."""
    plain: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for index, item in enumerate(late):
        numbers: dict[str, float] = {}
        mappings: list[str] = []
        for field in dataclasses.fields(item.uplink):
            value = getattr(item.uplink, field.name)
            if isinstance(value, Tensor):
                tensors[f"{index}/{field.name}"] = value
            elif isinstance(value, Mapping):
                mappings.append(field.name)
                tensors |= {f"{index}/{field.name}/{key}": part for key, part in value.items()}
            else:
                numbers[field.name] = value
        plain.append(
            {
                "client": item.client,
                "step": item.step,
                "due": item.due,
                "type": item.uplink.full_name(),
                "numbers": numbers,
                "mappings": mappings,
            }
        )
    return plain, tensors


def _unflatten(plain: list[dict[str, Any]], tensors: Mapping[str, Tensor]) -> list[LateReply]:
    late = []
    for index, item in enumerate(plain):
        values: dict[str, Any] = {**item["numbers"], **{name: {} for name in item["mappings"]}}
        for key, tensor in tensors.items():
            owner, _, place = key.partition("/")
            if int(owner) != index:
                continue
            name, nested, inner = place.partition("/")
            if nested:
                values[name][inner] = tensor
            else:
                values[name] = tensor
        uplink = Payload.types[item["type"]](**values)
        late.append(LateReply(item["client"], item["step"], item["due"], uplink))
    return late
