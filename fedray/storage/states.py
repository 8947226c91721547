"""The states of a run: one file a commit, and pointers that say in which file each state stands.

    states/000012-1f2e3d4c.safetensors   the states that changed up to commit 12
    states/head.json                     the last commit, from which a run resumes
    states/best.json, last.json          the commits whose models are kept

A commit writes a file, then the pointers, each of which replaces the one before in one step: after
a kill or on a full disk the previous commit stays complete. Files are never changed. The last key
of a pointer is the SHA-256 of the rest, which has the SHA-256 of each file.

A worker writes the states of its clients as one file and returns its name. The name begins with the
number of the commit that will contain it, and only files with older numbers that no pointer names
are removed, so that no file is removed before its name has arrived.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedray.errors import UserError
from fedray.flat import map_blocks
from fedray.storage.files import file_checksum, read_regular, remove_torn, sync, write_atomic
from fedray.storage.json_files import parse_json, sealed, unsealed
from fedray.storage.state_files import DAMAGE, StateFile, Written, damaged, write_states
from fedray.trees import ClientState, Snapshot, StateTree, leaves

HEAD, SERVER = "head", -1
"""The pointer of the last commit, and the number under which it has the server's state."""
MEMORY = 512 * 2**20
"""Bytes of new states after which they are written to a file before the next commit."""


@dataclass
class Commit:
    """The content of a pointer.

    Attributes:
        folder: the folder of the files.
        facts: JSON values about the commit.
        files: each file, with the numbers of its trees that belong to the commit, by name.
    """

    folder: Path
    facts: Mapping[str, Any]
    files: Mapping[str, Written]
    _open: dict[str, StateFile] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, name: str) -> Commit | None:
        """Return the commit that a pointer names; None without the pointer.

        Raises:
            UserError: if the pointer is damaged.
        """
        path = folder / f"{name}.json"
        try:
            content = unsealed(parse_json(read_regular(path)))
            files = {
                of: Written(of, size, sha, tuple(k)) for of, (size, sha, k) in content["files"]
            }
            return cls(folder, content["facts"], files)
        except FileNotFoundError:
            return None
        except DAMAGE as error:
            raise damaged(path, error) from None

    def write(self, name: str) -> None:
        """Replace a pointer by one to this commit."""
        files = [(of, entry[1:]) for of, entry in self.files.items()]
        content = sealed({"facts": self.facts, "files": files})
        write_atomic(self.folder / f"{name}.json", json.dumps(content, allow_nan=False))

    def file(self, name: str) -> StateFile:
        """Return an opened file, verified when it is opened first.

        Raises:
            UserError: if it is missing or has changed since it was written.
        """
        if name not in self._open:
            path, entry = self.folder / name, self.files[name]
            try:
                if file_checksum(path) != entry.sha256:
                    raise ValueError("its content does not fit its checksum")
            except (OSError, ValueError) as error:
                raise damaged(path, error) from None
            self._open[name] = StateFile(path)
        return self._open[name]

    def find(self, key: int) -> dict[str, Any] | None:
        """Return the tree of a number; None if the commit has none."""
        name = next((of for of, entry in self.files.items() if key in entry.keys), None)
        return None if name is None else self.file(name).read(key)


class Pin(NamedTuple):
    """A further pointer to a commit, for the models of one round.

    Attributes:
        name: the name of the pointer.
        facts: JSON values.
        files: files with further trees, under negative numbers.
        replaces: the names of pointers that are removed.
    """

    name: str
    facts: Mapping[str, Any]
    files: Sequence[Written]
    replaces: Sequence[str]


class Checkpoint(NamedTuple):
    """A loaded commit: the state of the federation, the clients' states, and further facts."""

    snapshot: Snapshot
    clients: StateStore
    facts: Mapping[str, Any]


class StateStore(Mapping[int, ClientState]):
    """The last state of each client; `commit` makes all of them the run's checkpoint.

    New states stay in memory until the next commit. A client that has never run a step has none.

    Args:
        folder: the folder of the files, which need not exist; None: a temporary folder.

    Attributes:
        number: the number of the next commit, with which the names of new files begin.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = None if folder is None else folder.absolute()
        self._thread = ThreadPoolExecutor(1, "commit")
        self._writing: Future[Written] | None = None
        self._saving: Mapping[int, ClientState] = {}
        self._named: dict[str, set[str]] = {}  # the names of the files of each pointer
        self.number = 0
        self._forget()

    def _forget(self) -> None:
        self._new: dict[int, ClientState] = {}  # in memory
        self._new_bytes = 0
        self._where: dict[int, str] = {}  # in files
        self._files: dict[str, Written] = {}
        self._open: dict[str, StateFile] = {}

    @property
    def folder(self) -> Path:
        """Return the folder of the files."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedray-states-")
            self._folder = Path(self._temporary.name)
        return self._folder

    # --- states -----------------------------------------------------------------------------------

    def __getitem__(self, client: int) -> ClientState:
        """Return a client's state."""
        if client in self._new:
            return self._new[client]
        return ClientState(**self._file(self._where[client]).read(client))

    def get(self, client: int, default: Any = None) -> Any:
        """Return a client's state, or `default`; faster than a mapping's `get`."""
        return self[client] if client in self._new or client in self._where else default

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._new, *self._where}))

    def __len__(self) -> int:
        return len({*self._new, *self._where})

    def put(self, client: int, state: ClientState) -> None:
        """Set a client's state."""
        self._where.pop(client, None)
        self._new[client] = state
        self._new_bytes += sum(tensor.nbytes for _, tensor in leaves(vars(state)))
        if self._new_bytes > MEMORY:
            self._flush()

    def add(self, written: Written) -> None:
        """Set the states of clients to those of a file that a worker has written.

        Raises:
            UserError: if the file is not in this process's folder.
        """
        if not (self.folder / written.name).exists():
            raise UserError(
                f"a worker has written {written.name}, but it is not in {self.folder}: results "
                "must lie in a folder that all nodes see; set FEDRAY_RESULTS to one"
            )
        self._files[written.name] = written
        for client in written.keys:
            self._new.pop(client, None)
            self._where[client] = written.name

    def places(self) -> Mapping[int, str]:
        """Return the name of the file of each client's state; write those in memory first."""
        if self._writing is None:
            self._tidy()
        if self._new:
            self._flush()
        return self._where

    def write(self, trees: Mapping[int, StateTree]) -> Written:
        """Write trees to a new file of the next commit."""
        return write_states(new_path(self.folder, self.number), trees)

    def close(self) -> None:
        """Free all states; those of the last commit stay in their files."""
        self._forget()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._folder = None

    def _flush(self) -> None:
        """Write the states in memory to a file."""
        self.wait()
        self._new_bytes = 0
        self.add(self.write({client: vars(state) for client, state in self._new.items()}))

    def _file(self, name: str) -> StateFile:
        if name not in self._open:
            self._open[name] = StateFile(self.folder / name)
        return self._open[name]

    def _tidy(self, kept: Collection[str] = ()) -> None:
        """Take states out of files that are mostly dead; remove files that no pointer names.

        No commit may be under way, and no worker of this run be writing a file.

        Args:
            kept: the names of further files that are not removed.
        """
        self.number += 1
        pinned = set().union(*(self._named[name] for name in self._named.keys() - {HEAD}))
        sizes = self._live_bytes()
        mostly_dead = {
            name
            for name in self._files
            if 2 * sizes[name] < self._file(name).nbytes and name not in pinned
        }
        for client in [client for client, name in self._where.items() if name in mostly_dead]:
            self._new[client] = self[client]
            del self._where[client]
        used = {*kept, *self._where.values()}.union(*self._named.values())
        for name in self._files.keys() - used:
            del self._files[name]
            self._open.pop(name, None)
        for path in self.folder.glob("*.safetensors"):
            if path.name not in used and 0 <= _number_of(path) < self.number:
                with suppress(OSError):
                    path.unlink()

    def _live_bytes(self) -> Counter[str]:
        """Return the bytes of the current states in each file."""
        sizes = Counter[str]()
        for client, name in self._where.items():
            sizes[name] += self._file(name).size(client)
        return sizes

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        snapshot: Snapshot,
        facts: Mapping[str, Any],
        pin: Pin | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin to make all states the checkpoint of a round.

        The files are written in a thread; the first commit is complete on return, since a run
        without one cannot be resumed.

        Args:
            snapshot: the federation's state.
            facts: further JSON values.
            pin: a further pointer to this commit.
            before: called in the thread before anything is written.
        """
        self.wait()
        self._tidy([file.name for file in pin.files] if pin else [])
        self._saving = dict(self._new)
        trees = {client: vars(state) for client, state in self._saving.items()}
        trees[SERVER] = map_blocks(_copied, snapshot.server)
        path, facts = new_path(self.folder, self.number), {"round": snapshot.round, **facts}
        self.number, self._new_bytes = self.number + 1, 0
        clients: dict[str, list[int]] = {}
        for client, name in self._where.items():
            clients.setdefault(name, []).append(client)
        files = {n: self._files[n]._replace(keys=tuple(of)) for n, of in clients.items()}
        work = path, trees, Commit(self.folder, facts, files), pin, before
        self._writing = self._thread.submit(self._write, *work)
        if not self._named:
            self.wait()

    def _write(
        self,
        path: Path,
        trees: Mapping[int, StateTree],
        commit: Commit,
        pin: Pin | None,
        before: Callable[[], object],
    ) -> Written:
        """Write a commit's file, and then its pointers, the one to resume from last."""
        before()
        written = write_states(path, trees)
        files = {**commit.files, written.name: written}
        pinned = {} if pin is None else files | {file.name: file for file in pin.files}
        for name in (files.keys() | pinned.keys()) - self._named.get(HEAD, set()):
            sync(self.folder / name)
        sync(self.folder)
        if pin is not None:
            self._point(pin.name, Commit(self.folder, pin.facts, pinned))
        self._point(HEAD, replace(commit, files=files))
        if pin is not None:
            self._unpin(*pin.replaces)
        return written

    def _point(self, name: str, commit: Commit) -> None:
        commit.write(name)
        sync(self.folder)
        self._named[name] = set(commit.files)

    def _unpin(self, *names: str) -> None:
        for name in names:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
            self._named.pop(name, None)

    def wait(self) -> None:
        """Wait until the commit that was begun is complete.

        Raises:
            OSError: if it could not be written; the previous commit is intact.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        written = writing.result()
        self._files[written.name] = written
        for client, state in self._saving.items():
            if self._new.get(client) is state:
                del self._new[client]
                self._where[client] = written.name
        self._saving = {}

    def load(self, identity: str | None = None) -> Checkpoint | None:
        """Read the last commit, and verify its files and those of all pins; None without one.

        Args:
            identity: hash of the experiment; None: that of any experiment.

        Raises:
            UserError: if another experiment wrote the commit, or a file is damaged or missing.
        """
        commits = self._read_pointers()
        for commit in commits.values():
            for name in commit.files:
                commit.file(name)
        head = commits.get(HEAD)
        if head is None:
            return None
        if identity not in (None, head.facts["identity"]):
            raise UserError(
                f"{self.folder} belongs to another experiment or other data; pass the experiment "
                "and keys with which the run was started, or another --out"
            )
        server = head.find(SERVER) or {}
        self._files, self._open = dict(head.files), dict(head._open)
        self._where = {key: n for n, entry in head.files.items() for key in entry.keys if key >= 0}
        return Checkpoint(Snapshot(head.facts["round"], server), self, head.facts)

    def _read_pointers(self) -> dict[str, Commit]:
        """Begin with what the pointers name, and return their commits by the pointer's name."""
        self._forget()
        names = [path.stem for path in sorted(self.folder.glob("[!.]*.json"))]
        commits = {name: Commit.read(self.folder, name) for name in names}
        found = {name: commit for name, commit in commits.items() if commit is not None}
        self._named = {name: set(commit.files) for name, commit in found.items()}
        numbers = [_number_of(path) for path in self.folder.glob("*.safetensors")]
        self.number = max(numbers, default=-1) + 1
        return found

    def tidy(self) -> None:
        """Remove files that no pointer names, and the folder if it is empty."""
        if self.folder.is_dir():
            remove_torn(self.folder)
            self._tidy()
            with suppress(OSError):
                self.folder.rmdir()

    def clear(self) -> None:
        """Remove the checkpoint, but not the pins."""
        self._unpin(HEAD)
        self._read_pointers()
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
