"""One federated checkpoint: the server, every client and replies on their way, as of one round.

    <out>/checkpoints/states.sqlite    round, experiment, small states, the names of large ones
    <out>/checkpoints/states/          large states, a safetensors file each, written once

A checkpoint is one transaction on the one before (`fedray.states`). It carries a checksum of the
records of all rounds up to its own, and each state has one: a file that was damaged, edited, or
taken from another run, round or client is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedray.core import StateTree
from fedray.core.state import map_tensors
from fedray.errors import UserError
from fedray.federation import LateReply, Snapshot
from fedray.files import remove
from fedray.records import own_entries
from fedray.states import Entry, Place, StateDatabase, StateStore, join_payload, split_payload

PLACE = "checkpoints"
"""The folder of the checkpoint, in the run's folder."""
SERVER, LATE = -1, -2
"""The numbers of the server's state, and of the payloads on their way, among those of clients."""


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
    """The checkpoint of one run; each replaces the one before.

    Args:
        out: the run's folder.
        identity: hash of the experiment; a checkpoint of another one is refused.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.folder = out.absolute() / PLACE
        self.identity = identity
        self.states = StateStore(self.folder)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[dict[int, Place | None]] | None = None

    def latest(self) -> int | None:
        """Return the round of the checkpoint; None if there is none."""
        facts = self.states.database.facts()
        self.states.database.close()
        return None if facts is None else int(facts["round"])

    def begin(
        self, snapshot: Snapshot, rounds_checksum: str = "", rounds: int | None = None
    ) -> None:
        """Begin to write a checkpoint of `snapshot` and the states in a thread.

        A run's first checkpoint is complete when this returns: a run without one cannot be resumed.

        Args:
            snapshot: the federation's state.
            rounds_checksum: of the records of all rounds up to this one.
            rounds: descriptor of the file with the records, which must be on the disk first.
        """
        self.wait()
        late, payloads = [], {}
        for index, item in enumerate(snapshot.late):
            payload, payloads[str(index)] = split_payload(item.uplink)
            late.append({"client": item.client, "step": item.step, "due": item.due, **payload})
        facts = {
            "identity": self.identity,
            "rounds_checksum": rounds_checksum,
            "round": snapshot.round,
            "late": late,
        }
        entries: dict[int, Entry] = {
            client: state if isinstance(state, Place) else vars(state)
            for client, state in self.states.begin().items()
        }
        entries |= {SERVER: _copied(snapshot.server), LATE: _copied(payloads)}
        self._writing = self._thread.submit(_write, self.states.database, facts, entries, rounds)
        if not self.states.database.places:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is whole.

        Raises:
            OSError, SafetensorError: if it could not be written; the one before is as it was.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            self.states.finish(writing.result())

    def tidy(self) -> None:
        """Remove the files of states that a process left that was killed as it wrote."""
        for path in self.states.unused_files():
            remove(path)
        for folder in (self.states.folder, self.folder):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()

    def clear(self) -> None:
        """Remove the checkpoint of a run that nobody resumes."""
        self.states.close()
        self.states = StateStore(self.folder)
        for path in own_entries(self.folder, PLACE):
            if path != self.states.folder:
                remove(path)
        self.tidy()

    def load(self) -> Checkpoint | None:
        """Read the checkpoint; None if there is none yet.

        All states are looked at, one after the other; none is kept in memory.

        Raises:
            UserError: if another experiment or version wrote it, or a file is damaged or missing.
        """
        self.states = StateStore(self.folder)
        database = self.states.database
        facts = database.load()
        if facts is None:
            return None
        if facts["identity"] != self.identity:
            raise UserError(
                f"{database.path} belongs to another experiment or other data; pass the experiment "
                f"and keys that {self.folder.parent / 'config.yaml'} shows, or another --out"
            )
        payloads = database.read(LATE)
        late = [
            LateReply(
                item["client"],
                item["step"],
                item["due"],
                join_payload(item, payloads[str(index)], database.path),
            )
            for index, item in enumerate(facts["late"])
        ]
        snapshot = Snapshot(facts["round"], database.read(SERVER), late)
        return Checkpoint(snapshot, self.states, facts["rounds_checksum"])


def _write(
    database: StateDatabase,
    facts: Mapping[str, Any],
    entries: Mapping[int, Entry],
    rounds: int | None,
) -> dict[int, Place | None]:
    if rounds is not None:
        os.fsync(rounds)  # rounds may be ahead of the checkpoint, never behind it
    return database.save(facts, entries.items())


def _copied(tree: StateTree) -> dict[str, Any]:
    """Copy a tree: the method may go on with it in place."""
    return map_tensors(lambda tensor: tensor.detach().cpu().contiguous().clone(), tree)
