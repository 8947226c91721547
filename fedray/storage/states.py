"""The states of a run: files that never change, and pointers that say in which each state stands.

    states/000012-1f2e3d4c.safetensors   states that commit 12 or a later one contains
    states/head.json                     the last commit, from which a run resumes
    states/best.json, last.json          the commits whose models are kept

Whoever runs steps writes the next states of its clients as one file (`write_states`), whose name it
hands on. A commit adds the server's state, flushes what is new to the disk, and replaces pointers,
each in one step: after a kill or on a full disk the previous commit stays complete. The last key of
a pointer is the SHA-256 of the rest, which has the SHA-256 of each file.

A file's name begins with the number of the next commit when it was written, and only files with
older numbers that no pointer names are removed: none is before its name has arrived.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedray.base.flat import map_blocks
from fedray.base.trees import ClientState, Snapshot, StateTree
from fedray.storage.files import file_checksum, read_regular, remove_torn, sync, write_atomic
from fedray.storage.json_files import parse_json, sealed, unsealed
from fedray.storage.state_files import DAMAGE, StateFile, Written, damaged, write_states

HEAD, SERVER = "head", -1
"""The pointer of the last commit, and the number under which it has the server's state."""


@dataclass
class Commit:
    """The content of a pointer.

    Attributes:
        folder: the folder of the files.
        facts: JSON values about the commit.
        files: each file, with the numbers of its trees that belong to the commit, by name.
        opened: those that are open.
    """

    folder: Path
    facts: Mapping[str, Any]
    files: dict[str, Written]
    opened: dict[str, StateFile] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, name: str) -> Commit | None:
        """Return the commit that a pointer names; None without the pointer.

        Raises:
            UserError: if the pointer is damaged.
        """
        path = folder / f"{name}.json"
        try:
            content = unsealed(parse_json(read_regular(path)))
            files = {of: Written(of, sha, tuple(keys)) for of, sha, keys in content["files"]}
            return cls(folder, content["facts"], files)
        except FileNotFoundError:
            return None
        except DAMAGE as error:
            raise damaged(path, error) from None

    def write(self, name: str) -> None:
        """Replace a pointer by one to this commit."""
        content = sealed({"facts": self.facts, "files": [*self.files.values()]})
        write_atomic(self.folder / f"{name}.json", json.dumps(content, allow_nan=False))

    def file(self, name: str) -> StateFile:
        """Return an opened file, verified when it is opened first.

        Raises:
            UserError: if it is missing or has changed since it was written.
        """
        if name not in self.opened:
            path = self.folder / name
            try:
                if file_checksum(path) != self.files[name].sha256:
                    raise ValueError("its content does not fit its checksum")
            except (OSError, ValueError) as error:
                raise damaged(path, error) from None
            self.opened[name] = StateFile(path)
        return self.opened[name]

    def find(self, key: int) -> dict[str, Any] | None:
        """Return the tree of a number; None if the commit has none."""
        name = next((of for of, entry in self.files.items() if key in entry.keys), None)
        return None if name is None else self.file(name).read(key)


class Pin(NamedTuple):
    """A further pointer to a commit: its name, its facts, and files that only it names."""

    name: str
    facts: Mapping[str, Any]
    files: Sequence[Written]


class Checkpoint(NamedTuple):
    """A loaded commit: the state of the federation, the clients' states, and further facts."""

    snapshot: Snapshot
    clients: StateStore
    facts: Mapping[str, Any]


class StateStore(Mapping[int, ClientState]):
    """The last state of each client; `commit` makes all of them the run's checkpoint.

    A client that has never run a step has none.

    Args:
        folder: the folder of the files, which need not exist; None: a temporary folder.

    Attributes:
        number: the number of the next commit, with which the names of new files begin.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedray-states-")
            folder = Path(self._temporary.name)
        self.folder = folder.absolute()
        self._thread = ThreadPoolExecutor(1, "commit")
        self._writing: Future[None] | None = None
        self._named: dict[str, Collection[str]] = {}  # the names of the files of each pointer
        self.number = 0
        self._begin_with(Commit(self.folder, {}, {}))

    def _begin_with(self, head: Commit) -> None:
        """Hold the states of a commit."""
        self._now = head
        self._where = {key: n for n, file in head.files.items() for key in file.keys if key >= 0}

    def __getitem__(self, client: int) -> ClientState:
        """Return a client's state."""
        return ClientState(**self._now.file(self._where[client]).read(client))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._where))

    def __len__(self) -> int:
        return len(self._where)

    def put(self, states: Mapping[int, ClientState]) -> None:
        """Set the states of clients; write them to one file."""
        if states:
            self.add(self.write({client: vars(state) for client, state in states.items()}))

    def write(self, trees: Mapping[int, StateTree]) -> Written:
        """Write trees to a new file of the next commit."""
        return write_states(new_path(self.folder, self.number), trees)

    def add(self, written: Written) -> None:
        """Set the states of clients to those of a file that has just been written.

        Raises:
            UserError: if the file is not in this process's folder.
        """
        self._now.files[written.name] = written
        self._now.opened[written.name] = StateFile(self.folder / written.name)
        self._where |= dict.fromkeys(written.keys, written.name)

    def places(self) -> Mapping[int, str]:
        """Return the name of the file of each client's state; call it while no worker writes."""
        if self._writing is None:
            self._tidy()
        return self._where

    def close(self) -> None:
        """Free all states; those of the last commit stay in their files."""
        self._begin_with(Commit(self.folder, {}, {}))
        if self._temporary is not None:
            self._temporary.cleanup()

    def _tidy(self, kept: Collection[str] = ()) -> None:
        """Copy states out of files that are mostly dead; remove files that no pointer names.

        No commit may be under way, and no worker of this run be writing a file.

        Args:
            kept: the names of further files that are not removed.
        """
        self.number += 1
        live = dict.fromkeys(self._now.files, 0)
        for client, name in self._where.items():
            live[name] += self._now.file(name).sizes[client]
        dead = {n for n in live if 2 * live[n] < sum(self._now.file(n).sizes.values())}
        pins = [files for name, files in self._named.items() if name != HEAD]
        dead = dead.difference(*pins)
        self.put({client: self[client] for client, name in self._where.items() if name in dead})
        used = {*kept, *self._where.values()}.union(*self._named.values())
        for name in self._now.files.keys() - used:
            del self._now.files[name], self._now.opened[name]
        for path in self.folder.glob("*.safetensors"):
            if path.name not in used and 0 <= _number_of(path) < self.number:
                with suppress(OSError):
                    path.unlink()

    def commit(
        self,
        snapshot: Snapshot,
        facts: Mapping[str, Any],
        pin: Pin | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to make all states the checkpoint of a round.

        It is written in a thread; the first one is complete on return, since a run without one
        cannot be resumed.

        Args:
            snapshot: the federation's state.
            facts: further JSON values.
            pin: a further pointer to this commit.
            before: called in the thread before anything is written.
        """
        self.wait()
        self._tidy([file.name for file in pin.files] if pin else ())
        keys: dict[str, list[int]] = {}
        for client, name in self._where.items():
            keys.setdefault(name, []).append(client)
        files = {name: self._now.files[name]._replace(keys=tuple(of)) for name, of in keys.items()}
        commit = Commit(self.folder, {"round": snapshot.round, **facts}, files)
        server = map_blocks(_copied, snapshot.server)
        path = new_path(self.folder, self.number)
        self._writing = self._thread.submit(self._write, path, server, commit, pin, before)
        if not self._named:
            self.wait()

    def _write(
        self,
        path: Path,
        server: StateTree,
        commit: Commit,
        pin: Pin | None,
        before: Callable[[], object],
    ) -> None:
        """Write the server's state, and then the pointers, the one to resume from last."""
        before()
        written = write_states(path, {SERVER: server})
        commit = replace(commit, files={**commit.files, written.name: written})
        pointers = {HEAD: commit}
        if pin is not None:
            pinned = {**commit.files, **{file.name: file for file in pin.files}}
            pointers = {pin.name: Commit(self.folder, pin.facts, pinned), HEAD: commit}
        new = set[str]().union(*(pointer.files for pointer in pointers.values()))
        for name in new.difference(self._named.get(HEAD, ())):
            sync(self.folder / name)
        sync(self.folder)
        for name, pointer in pointers.items():
            pointer.write(name)
            sync(self.folder)
            self._named[name] = {*pointer.files}

    def wait(self) -> None:
        """Wait until the commit that was begun is complete.

        Raises:
            Exception: if it could not be written; the previous commit is intact.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def load(self) -> Checkpoint | None:
        """Take over the last commit; verify its files and those of all pins. None without one.

        Raises:
            UserError: if a file is damaged or missing.
        """
        names = [path.stem for path in sorted(self.folder.glob("[!.]*.json"))]
        commits = {name: commit for name in names if (commit := Commit.read(self.folder, name))}
        for commit in commits.values():
            for name in commit.files:
                commit.file(name)
        self._named = {name: {*commit.files} for name, commit in commits.items()}
        numbers = [_number_of(path) for path in self.folder.glob("*.safetensors")]
        self.number, head = max(numbers, default=-1) + 1, commits.get(HEAD)
        self._begin_with(head or Commit(self.folder, {}, {}))
        if head is None:
            return None
        return Checkpoint(Snapshot(head.facts["round"], head.find(SERVER) or {}), self, head.facts)

    def tidy(self) -> None:
        """Remove files that no pointer names, and the folder if it is empty."""
        if self.folder.is_dir():
            remove_torn(self.folder)
            self._tidy()
            with suppress(OSError):
                self.folder.rmdir()

    def clear(self) -> None:
        """Remove the checkpoint, but not the pins."""
        (self.folder / f"{HEAD}.json").unlink(missing_ok=True)
        self.load()
        self.tidy()


def new_path(folder: Path, number: int) -> Path:
    """Return the path of a new file of states that the commit of a number will contain."""
    return folder / f"{number:06d}-{secrets.token_hex(4)}.safetensors"


def latest_round(folder: Path) -> int | None:
    """Return the round of the last commit in a folder of states; None without one."""
    commit = Commit.read(folder, HEAD)
    return None if commit is None else int(commit.facts["round"])


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, which a step that changes its state in place does not reach."""
    return tensor.detach().cpu().contiguous().clone()


def _number_of(path: Path) -> int:
    number, _, _ = path.name.partition("-")
    return int(number) if number.isdecimal() else -1
