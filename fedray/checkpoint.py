"""One federated checkpoint: the server, every client and replies on their way, as of one round.

    <out>/checkpoints/states.sqlite    round, experiment, small states, the names of large ones
    <out>/checkpoints/states/          large states, a safetensors file each, written once

A checkpoint is one transaction on the one before (`fedray.states`). It carries a checksum of the
records of all rounds up to its own, and each state has one: a file that was damaged, edited, or
taken from another run, round or client is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from fedray.core import StateTree
from fedray.core.state import map_tensors
from fedray.errors import UserError
from fedray.federation import LateReply, Snapshot
from fedray.files import remove
from fedray.records import own_entries
from fedray.states import Place, StateStore, join_payload, other_format, split_payload

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

    Attributes:
        states: the clients' states.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.folder = out.absolute() / PLACE
        self.identity = identity
        self.states = StateStore(self.folder)
        self._writing: _Writing | None = None

    def latest(self) -> int | None:
        """Return the round of the checkpoint; None if there is none.

        Raises:
            UserError: if its file is damaged or of another version's format.
        """
        facts = self.states.database.facts()
        self.states.database.close()
        self._refuse_format_4(facts)
        return None if facts is None else int(facts["round"])

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
            OSError, SafetensorError: as `wait`, of the one before.
        """
        self.wait()
        is_first = not self.states.database.places
        facts = {"identity": self.identity, "rounds_checksum": rounds_checksum}
        self._writing = _Writing(self.states, snapshot, facts, rounds)
        self._writing.start()
        if is_first:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is whole.

        Raises:
            OSError, SafetensorError: if it could not be written; the one before is as it was.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        writing.join()
        if writing.error is not None:
            raise writing.error
        self.states.finish(writing.places)

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
            UserError: if it belongs to another experiment or another version's format, or if a
                file of it is damaged or missing.
        """
        self.states = StateStore(self.folder)
        database = self.states.database
        facts = database.load()
        self._refuse_format_4(facts)
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

    def _refuse_format_4(self, facts: Mapping[str, Any] | None) -> None:
        """Refuse a checkpoint in a folder of its own, as earlier versions wrote them.

        Raises:
            UserError: naming the folder.
        """
        folders = self.folder.glob("round_*") if facts is None else ()
        for path in folders:
            if re.fullmatch(r"round_\d{5,}", path.name) and (path / "meta.json").is_file():
                raise other_format(path, 4)


class _Writing(Thread):
    """Writes one checkpoint; what it writes was copied, or changes no more.

    Attributes:
        places: of what was written.
        error: what went wrong.
    """

    def __init__(
        self,
        states: StateStore,
        snapshot: Snapshot,
        facts: Mapping[str, Any],
        rounds: int | None,
    ) -> None:
        super().__init__(name="checkpoint", daemon=True)
        late, payloads = [], {}
        for index, item in enumerate(snapshot.late):
            payload, payloads[str(index)] = split_payload(item.uplink)
            late.append({"client": item.client, "step": item.step, "due": item.due, **payload})
        self.places: dict[int, Place | None] = {}
        self.error: BaseException | None = None
        self._database = states.database
        self._facts = {**facts, "round": snapshot.round, "late": late}
        self._entries: dict[int, StateTree | Place] = {
            client: state if isinstance(state, Place) else vars(state)
            for client, state in states.begin().items()
        }
        self._entries |= {SERVER: _copied(snapshot.server), LATE: _copied(payloads)}
        self._rounds = rounds

    def run(self) -> None:
        """Write it; an error is kept for the thread that waits."""
        try:
            if self._rounds is not None:
                os.fsync(self._rounds)  # rounds may be ahead of the checkpoint, never behind it
            self.places = self._database.save(self._facts, self._entries.items())
        except BaseException as error:
            self.error = error


def _copied(tree: StateTree) -> dict[str, Any]:
    """Copy a tree: the method may go on with it in place."""
    return map_tensors(lambda tensor: tensor.detach().cpu().contiguous().clone(), tree)
