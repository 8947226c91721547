"""Snapshots of a run: the server and all clients after one round.

    <out>/checkpoints/states.sqlite    rounds, experiment, small states, the names of large ones
    <out>/checkpoints/states/          large states, a safetensors file each, written once

One database transaction replaces the checkpoint, from which a run resumes, and pins it if its
models are kept (`fedray.storage.database`, `fedray.storage.kept_models`). A checkpoint holds a
checksum of the records of all rounds up to its own and one of each state, so that a file that was
damaged, edited, or taken from another run, round or client is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedray.errors import UserError
from fedray.storage.database import CHECKPOINT, Entry, Pin, Saved, StateDatabase
from fedray.storage.entries import own_entries
from fedray.storage.files import remove
from fedray.storage.states import StateStore
from fedray.storage.tensors import TreeFile
from fedray.trees import Snapshot, private_copy

log = logging.getLogger(__name__)

PLACE = "checkpoints"
"""The name of the folder of snapshots in the run's folder."""
SERVER = -1
"""The number under which the server's state is stored, next to clients."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        snapshot: the federation's state.
        clients: states by client id, read on access; clients that never ran a step are missing.
        rounds_checksum: checksum of the records of all rounds up to this one.
    """

    snapshot: Snapshot
    clients: StateStore
    rounds_checksum: str


class CheckpointStore:
    """The snapshots of one run; a new checkpoint replaces the previous one.

    Args:
        out: the run's folder.
        identity: hash of the experiment; a checkpoint of another experiment is refused.

    Attributes:
        has_room: False once a pin took more bytes than allowed.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.folder = out.absolute() / PLACE
        self.identity = identity
        self.states = StateStore(self.folder)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Saved] | None = None
        self._pin: Pin | None = None
        self.has_room = True

    def latest(self) -> int | None:
        """Return the round of the checkpoint; None without a checkpoint."""
        facts = self.states.database.snapshots().get(CHECKPOINT)
        self.states.database.close()
        return None if facts is None else int(facts["round"])

    def begin(
        self,
        snapshot: Snapshot,
        rounds_checksum: str = "",
        rounds: int | None = None,
        pin: Pin | None = None,
    ) -> None:
        """Begin to write a checkpoint of `snapshot` and the client states in a thread.

        The first checkpoint of a run is complete on return, since a run without one cannot be
        resumed.

        Args:
            snapshot: the federation's state.
            rounds_checksum: checksum of the records of all rounds up to this one.
            rounds: file descriptor of the records, which are flushed to the disk first.
            pin: keeps the snapshot when later ones replace it.
        """
        self.wait()
        facts = {
            "identity": self.identity,
            "rounds_checksum": rounds_checksum,
            "round": snapshot.round,
        }
        entries: dict[int, Entry] = {
            client: state if isinstance(state, TreeFile) else vars(state)
            for client, state in self.states.begin().items()
        }
        entries[SERVER] = private_copy(snapshot.server)
        self._pin = pin
        self._writing = self._thread.submit(
            _write, self.states.database, facts, entries, rounds, pin
        )
        if not self.states.database.places:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that `begin` started is complete.

        Raises:
            OSError, SafetensorError: if the write failed; the previous snapshots are intact.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        saved = writing.result()
        self.states.finish(saved.places)
        if self._pin is not None and not saved.has_pin:
            self.has_room = False
            log.warning(
                "the models of one round take more than keep.max_gb=%g GB, so they are not saved; "
                "raise keep.max_gb, or set keep.models=none",
                self._pin.max_bytes / 1e9,
            )

    def tidy(self) -> None:
        """Remove the state files of a process that was killed while writing, and empty folders."""
        for path in self.states.unused_files():
            remove(path)
        for folder in (self.states.folder, self.folder):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()

    def clear(self) -> None:
        """Remove the checkpoint; kept models stay."""
        self.states.close()
        self.states = StateStore(self.folder)
        if not self.states.database.remove_checkpoint():
            for path in own_entries(self.folder, PLACE):
                if path != self.states.folder:
                    remove(path)
        self.tidy()

    def load(self) -> Checkpoint | None:
        """Read and verify the checkpoint and its pins; return None without a checkpoint.

        All states are verified one by one; none is kept in memory.

        Raises:
            UserError: if another experiment wrote the checkpoint, or a file is damaged or missing.
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
        snapshot = Snapshot(facts["round"], database.read(SERVER))
        return Checkpoint(snapshot, self.states, facts["rounds_checksum"])


def _write(
    database: StateDatabase,
    facts: Mapping[str, Any],
    entries: Mapping[int, Entry],
    rounds: int | None,
    pin: Pin | None,
) -> Saved:
    if rounds is not None:
        os.fsync(rounds)  # records may be ahead of the checkpoint, never behind it
    return database.save(facts, entries.items(), pin)
