"""One federated checkpoint: the server, every client and replies on their way, as of one round.

    <out>/checkpoints/round_00007/
        meta.json               round, experiment, what the index says, checksums
        server.safetensors
    <out>/checkpoints/states/
        index-...               who rests where: a checkpoint names its first lines
        ...                     the clients' states (`fedray.states`), each written once

A checkpoint is written beside its place and renamed, so a torn one has no final name. A file holds
a tree of tensors: its header says how they are nested, in their order, and which are the same.

meta.json carries a checksum of itself, of each file (of its tensors' names, shapes, types, order
and content), of the index, which has one of each state, and of the records of all rounds up to its
own: a file that was damaged, edited, or taken from another run, round or client fits none of them,
and is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedray.core import StateTree
from fedray.core.state import map_tensors
from fedray.errors import UserError
from fedray.federation import LateReply, Snapshot
from fedray.files import remove, sync, write_json
from fedray.records import checksum, own_entries, sealed
from fedray.states import (
    LARGE_TENSOR,
    Saving,
    StateStore,
    damaged,
    put_together,
    read_sealed,
    taken_apart,
)

FORMAT = 4
"""4 has the clients' states in a store of their own."""
META, SERVER, LATE = "meta.json", "server.safetensors", "late.safetensors"
PLACE = "checkpoints"
"""The folder of the checkpoints, in the run's folder."""
_STRUCTURE = "structure"


@dataclass(frozen=True)
class Checkpoint:
    """What was read back.

    Attributes:
        snapshot: the federation's state.
        clients: states by client id, read when they are asked for; a client that never stepped is
            not in it.
        rounds_checksum: of the records of all rounds up to this one.
    """

    snapshot: Snapshot
    clients: StateStore
    rounds_checksum: str


class CheckpointStore:
    """The checkpoints of one run; only the latest is kept.

    Args:
        out: the run's folder.
        identity: hash of the experiment; a checkpoint of another one is refused.

    Attributes:
        states: the clients' states, of which a checkpoint names those that hold.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.folder = out.absolute() / PLACE
        self.identity = identity
        self.states = StateStore(self.folder / "states")
        self._writing: _Writing | None = None

    def latest(self) -> Path | None:
        """Return the folder of the newest checkpoint, or None."""
        entries = own_entries(self.folder, PLACE)
        rounds = [path for path in entries if path.name.startswith("round_")]
        return max(rounds, key=lambda path: int(path.name[6:]), default=None)

    def begin(
        self, snapshot: Snapshot, rounds_checksum: str = "", rounds: int | None = None
    ) -> None:
        """Begin to write a checkpoint of `snapshot` and the states, beside what comes next.

        A run's first one is whole when this returns: rounds without any cannot be gone on with.

        Args:
            snapshot: the federation's state.
            rounds_checksum: of the records of all rounds up to this one.
            rounds: descriptor of the file with the records, which must be on the disk first.

        Raises:
            OSError, SafetensorError, UserError: as `wait`, of the one before.
        """
        self.wait()
        place = self.folder / f"round_{snapshot.round:05d}"
        facts = {"identity": self.identity, "rounds_checksum": rounds_checksum}
        self._writing = _Writing(place, snapshot, facts, self.states.begin(), rounds)
        self._writing.start()
        if self.latest() is None:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is whole, and remove the one before.

        Raises:
            OSError, SafetensorError: when it could not be written; the one before is as it was.
            UserError: when a state that it needed is damaged.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        writing.join()
        if writing.error is not None:
            self.states.abandon(writing.saving)
            raise writing.error
        self._remove_all_but(writing.place)
        self.states.finish(writing.saving)

    def tidy(self) -> None:
        """Remove all but the latest checkpoint: what a process left that was killed as it wrote."""
        self._tidy(self.latest())

    def clear(self) -> None:
        """Remove all checkpoints and states of a run that nobody resumes."""
        self.states = StateStore(self.states.folder)
        self._tidy(None)

    def _tidy(self, place: Path | None) -> None:
        self._remove_all_but(place)
        self.states.tidy()
        for folder in (self.states.folder, self.folder):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()

    def _remove_all_but(self, place: Path | None) -> None:
        """Remove other checkpoints; entries whose names fedray does not give stay."""
        for entry in own_entries(self.folder, PLACE):
            if entry not in (place, self.states.folder):
                with suppress(OSError):
                    remove(entry)

    def load(self) -> Checkpoint | None:
        """Read the newest checkpoint; None when there is none yet.

        All states are looked at, one after the other; none is kept in memory.

        Raises:
            UserError: when it belongs to another experiment or another version's format, or when
                a file of it is damaged or missing.
        """
        place = self.latest()
        if place is None:
            return None
        meta = _meta(place)
        if meta["identity"] != self.identity:
            raise UserError(
                f"{place} belongs to another experiment or other data; pass the experiment and "
                f"keys that {place.parent.parent / 'config.yaml'} shows, or another --out"
            )
        files = meta["files"]
        payloads = _read(place / LATE, files[LATE])
        snapshot = Snapshot(
            round=meta["round"],
            server=_read(place / SERVER, files[SERVER]),
            late=_unflatten(meta["late"], payloads, place / META),
        )
        self.states = StateStore(self.states.folder)
        self.states.adopt(meta["index"])
        return Checkpoint(snapshot, self.states, meta["rounds_checksum"])


class _Writing(Thread):
    """Writes one checkpoint; what it writes was copied, or changes no more.

    Attributes:
        place: the checkpoint's folder, there once it is whole.
        saving: the states.
        error: what went wrong.
    """

    def __init__(
        self,
        place: Path,
        snapshot: Snapshot,
        facts: Mapping[str, Any],
        saving: Saving,
        rounds: int | None,
    ) -> None:
        super().__init__(name="checkpoint", daemon=True)
        late, payloads = _flatten(snapshot.late)
        self.place = place
        self.saving = saving
        self.error: BaseException | None = None
        self._trees = {SERVER: _copied(snapshot.server), LATE: _copied(payloads)}
        self._meta = {**facts, "format": FORMAT, "round": snapshot.round, "late": late}
        self._rounds = rounds

    def run(self) -> None:
        """Write it; an error is kept for who waits."""
        temporary = self.place.with_name(f".{self.place.name}.{os.getpid()}.tmp")
        try:
            if self._rounds is not None:
                os.fsync(self._rounds)  # rounds may be ahead of the checkpoint, never behind it
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            index = self.saving.write()
            files = {name: _write(tree, temporary / name) for name, tree in self._trees.items()}
            write_json(temporary / META, sealed({**self._meta, "index": index, "files": files}))
            for file in (*temporary.iterdir(), temporary):
                sync(file)
            self._rename(temporary)
        except BaseException as error:
            self.error = error
            if isinstance(error, Exception):
                shutil.rmtree(temporary, ignore_errors=True)

    def _rename(self, temporary: Path) -> None:
        """Give a whole checkpoint its name; where that is not sure to last, take it back.

        Whoever waits removes what a checkpoint names that could not be written.
        """
        old = self.place.with_name(f".{self.place.name}.old.{os.getpid()}.tmp")
        if self.place.exists():
            os.replace(self.place, old)
        try:
            os.replace(temporary, self.place)
            sync(self.place.parent)
        except Exception:
            if self.place.exists():
                os.replace(self.place, temporary)
            if old.exists():
                os.replace(old, self.place)
            raise


def _meta(place: Path) -> dict[str, Any]:
    """What a checkpoint's meta.json says.

    Raises:
        UserError: when it is missing or damaged, of another format or another round.
    """
    path = place / META
    meta = read_sealed(
        path, FORMAT, "go on with the version that wrote it, or start anew with another --out"
    )
    if f"round_{meta['round']:05d}" != place.name:
        raise damaged(path, ValueError(f"it is that of round {meta['round']}"))
    return meta


def _copied(tree: StateTree) -> dict[str, Any]:
    """A tree as it is now: the method may go on with it in place."""
    return map_tensors(lambda tensor: tensor.detach().cpu().contiguous().clone(), tree)


def _write(tree: StateTree, path: Path) -> str:
    """Write a tree of contiguous tensors; of large ones with the same content, the first alone.

    Returns:
        The file's checksum, made on the way.
    """
    stored: dict[str, Tensor] = {}
    facts: dict[str, TensorFacts] = {}
    known: dict[TensorFacts, str] = {}

    def store(tensor: Tensor, path: tuple[str, ...]) -> str:
        found = _facts(tensor)
        if tensor.nbytes >= LARGE_TENSOR and found in known:
            return known[found]
        name = _unused("/".join(path), stored)
        stored[name] = tensor
        facts[name], known[found] = found, name
        return name

    def structure(branch: StateTree, path: tuple[str, ...]) -> dict[str, Any]:
        return {
            key: structure(value, (*path, key))
            if isinstance(value, Mapping)
            else store(value, (*path, key))
            for key, value in branch.items()
        }

    nested = json.dumps(structure(tree, ()))
    save_file(stored, path, {_STRUCTURE: nested})
    return _file_checksum(nested, facts)


TensorFacts: TypeAlias = tuple[str, tuple[int, ...], bytes]
"""A tensor's type, shape and the SHA-256 of its content."""


def _facts(tensor: Tensor) -> TensorFacts:
    content = tensor.reshape(-1).view(torch.uint8).numpy().data
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(content).digest()


def _file_checksum(structure: str, facts: Mapping[str, TensorFacts]) -> str:
    """Over how the tensors are nested, in their order, and over each one's name and facts."""
    rows = [
        f"{name}\0{kind}\0{shape}\0{content.hex()}"
        for name, (kind, shape, content) in sorted(facts.items())
    ]
    return checksum("\n".join([structure, *rows]))


def _unused(name: str, taken: Mapping[str, Tensor]) -> str:
    """A name that no tensor has: keys may hold the slash that joins them."""
    while name in taken:
        name += "'"
    return name


def _read(path: Path, expected: str) -> dict[str, Any]:
    """What `_write` wrote, in its order; equal large tensors share their memory.

    Raises:
        UserError: when it is damaged, or is not the file with the expected checksum.
    """
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            structure = (file.metadata() or {})[_STRUCTURE]
        facts = {name: _facts(tensor) for name, tensor in found.items()}
        if _file_checksum(structure, facts) != expected:
            raise ValueError("its content does not fit its checksum in meta.json")
        return _nested(json.loads(structure), found)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from None


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
        facts, trees[str(index)] = taken_apart(item.uplink)
        plain.append({"client": item.client, "step": item.step, "due": item.due, **facts})
    return plain, trees


def _unflatten(
    plain: list[dict[str, Any]], trees: Mapping[str, Any], where: Path
) -> list[LateReply]:
    late = []
    for index, item in enumerate(plain):
        uplink = put_together(item, trees[str(index)], where)
        late.append(LateReply(item["client"], item["step"], item["due"], uplink))
    return late
