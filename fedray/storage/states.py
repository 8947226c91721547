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

A file has trees of tensors by number, each as one vector of bytes. Its metadata has the distinct
forms of the trees (names, types and shapes in order), and for each number its form and its bytes.
In a vector, every tensor, or vector of a `Flat`, begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from fedray.base.errors import UserError
from fedray.base.flat import Flat, layout_of, map_blocks
from fedray.base.trees import ALIGNMENT, ClientState, Snapshot, StateTree
from fedray.storage.files import (
    file_checksum,
    parse_json,
    read_regular,
    remove_torn,
    sealed,
    sync,
    unsealed,
    write_atomic,
)
from fedray.storage.run import Round, Run
from fedray.storage.run_folder import RunFolder

HEAD, SERVER, FIRST_DOWNLOAD = "head", -1, -2
"""The pointer of the last commit, the number under which it has the server's state, and that of the
first download of kept models; further ones have the numbers below."""
Which: TypeAlias = Literal["best", "last"]
DAMAGE = (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors raised by reading a damaged file."""
_FACTS, _TENSOR = "states", ""
"""The key of the metadata, and the name of a tensor that does not belong to a `Flat`."""


class Written(NamedTuple):
    """A file of states that has been written.

    Attributes:
        name: its name.
        sha256: the SHA-256 of its content, in hexadecimal digits.
        keys: the numbers of its trees.
    """

    name: str
    sha256: str
    keys: tuple[int, ...]


def write_states(path: Path, trees: Mapping[int, StateTree]) -> Written:
    """Write trees to a new file; the caller flushes it to the disk before a pointer names it."""
    forms: dict[str, int] = {}
    places: dict[int, tuple[int, int]] = {}
    vectors: dict[str, NDArray[np.uint8]] = {}
    for key, tree in trees.items():
        parts = [np.zeros(0, np.uint8)]
        form = json.dumps(_form(tree, parts))
        vectors[str(key)] = vector = np.concatenate(parts)
        places[key] = forms.setdefault(form, len(forms)), vector.nbytes
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = f'{{"forms": [{", ".join(forms)}], "places": {json.dumps(places)}}}'
    save_file(vectors, path, {_FACTS: facts})
    return Written(path.name, file_checksum(path), tuple(trees))


class StateFile:
    """A file of states, opened for reading.

    Args:
        path: the file.
        sha256: the SHA-256 of its content as it was written; "": not verified.

    Attributes:
        sizes: the bytes of each tree by its number.

    Raises:
        UserError: if the file is missing or damaged, or has changed since it was written.
    """

    def __init__(self, path: Path, sha256: str = "") -> None:
        try:
            if sha256 and file_checksum(path) != sha256:
                raise ValueError("its content does not fit its checksum")
            file: Any = safe_open(path, framework="pt")
            facts, self._file = json.loads(file.metadata()[_FACTS]), file
            places = facts["places"].items()
            self._forms = {int(key): facts["forms"][form] for key, (form, _) in places}
            self.sizes = {int(key): size for key, (_, size) in places}
        except DAMAGE as error:
            raise damaged(path, error) from None

    def read(self, key: int) -> dict[str, Any]:
        """Return the tree of a number."""
        content = self._file.get_tensor(str(key)).clone()  # aligned, which the file is not
        tree: dict[str, Any] = _filled(self._forms[key], content)[0]
        return tree


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error that explains why a file cannot be read, and what to do."""
    reason = "it is missing" if isinstance(error, FileNotFoundError) else error
    return UserError(
        f"{path} is damaged ({reason}); restore it from a copy, or start a new run with another "
        "--out"
    )


def _form(value: Any, parts: list[NDArray[np.uint8]]) -> Any:
    """Return names, types and shapes as JSON values; add the tensors' bytes to `parts`."""
    tensors, forms = [value], [(_TENSOR, value)]
    if type(value) is Flat and [vector.dtype for vector in value.vectors] == [
        dtype for dtype, _ in value.layout.sizes
    ]:  # not one that was converted to other types
        tensors, forms = [*value.vectors], [*value.items()]
    elif not isinstance(value, Tensor):
        return {name: _form(inner, parts) for name, inner in value.items()}
    for tensor in tensors:
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        parts += content, np.zeros(-content.nbytes % ALIGNMENT, np.uint8)
    return [[name, str(t.dtype).removeprefix("torch."), [*t.shape]] for name, t in forms]


def _filled(form: Any, content: Tensor) -> tuple[Any, Tensor]:
    """Return what has a form and begins with `content`, and the content after it."""
    if isinstance(form, dict):
        tree = {}
        for name, inner in form.items():
            tree[name], content = _filled(inner, content)
        return tree, content
    layout = layout_of(tuple((name, getattr(torch, t), tuple(shape)) for name, t, shape in form))
    vectors = []
    for dtype, length in layout.sizes:
        size = length * dtype.itemsize
        vectors.append(content[:size].view(dtype))
        content = content[size:]
    flat = Flat(layout, vectors)
    return flat[_TENSOR] if _TENSOR in layout.places else flat, content


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
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, Written] = field(default_factory=dict)
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
        """Replace a pointer by one to this commit, whose files are on the disk."""
        content = sealed({"facts": self.facts, "files": [*self.files.values()]})
        write_atomic(self.folder / f"{name}.json", json.dumps(content, allow_nan=False))
        sync(self.folder)

    def file(self, name: str) -> StateFile:
        """Return an opened file, verified when it is opened first; see `StateFile`."""
        if name not in self.opened:
            self.opened[name] = StateFile(self.folder / name, self.files[name].sha256)
        return self.opened[name]

    def find(self, key: int) -> dict[str, Any] | None:
        """Return the tree of a number; None if the commit has none."""
        name = next((of for of, entry in self.files.items() if key in entry.keys), None)
        return None if name is None else self.file(name).read(key)

    def download(self, client: int) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
        """Return facts and tensors of the download of a client whose models are kept, if any."""
        position = self.facts["of_client"][client]
        tree = None if position is None else self.find(FIRST_DOWNLOAD - position)
        return None if tree is None else (self.facts["downloads"][position], tree)


class Pin(NamedTuple):
    """A further pointer to a commit, whose models are kept: with the states as they were tested.

    Attributes:
        name: the round that it is: "best" or "last"; a last round that is the best is the "best".
        facts: `round`, `is_global` (all clients predict with one model), `downloads` (JSON values
            about each download) and `of_client` (the position of each client's download, or None).
        files: those that only the pin names, with the downloads.
    """

    name: Which
    facts: Mapping[str, Any]
    files: Sequence[Written]


def kept_models(folder: RunFolder, run: Run) -> dict[Which, Commit]:
    """Return the commits whose models a run keeps, "best" first.

    If `keep.models` was changed before the run went on, what it does not ask for and what is no
    longer the best or last round is left out.

    Raises:
        UserError: if a pointer is damaged.
    """
    found: dict[Which, Commit] = {}
    rounds: Mapping[Which, Round | None] = {"best": run.best, "last": run.final}
    for which, done in rounds.items():
        is_asked = which == "last" or run.info.config["keep"]["models"] != "last"
        commit = Commit.read(folder.states, which) if is_asked else None
        at = None if done is None else done.round
        if commit is not None and (not run.is_finished or commit.facts["round"] == at):
            found[which] = commit
    return found


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
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="fedray-states-")
        self.folder = Path(self._temporary.name if self._temporary else folder or "").absolute()
        self.number = 0
        self._now = Commit(self.folder)
        self._where: dict[int, str] = {}  # the name of the file of each client's state
        self._named: dict[str, Collection[str]] = {}  # the names of the files of each pointer
        self._thread = ThreadPoolExecutor(1, "commit")
        self._writing: Future[None] | None = None

    def __getitem__(self, client: int) -> ClientState:
        """Return a client's state."""
        return ClientState(**self._now.file(self._where[client]).read(client))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._where))

    def __len__(self) -> int:
        return len(self._where)

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

    def put(self, states: Mapping[int, ClientState]) -> None:
        """Set the states of clients; write them to one file."""
        if states:
            self.add(self.write({client: vars(state) for client, state in states.items()}))

    def places(self) -> Mapping[int, str]:
        """Return the name of the file of each client's state; call it while no worker writes."""
        if self._writing is None or self._writing.done():
            self._compact()
        return self._where

    def close(self) -> None:
        """Free all states; those of the last commit stay in their files."""
        self._now, self._where = Commit(self.folder), {}
        if self._temporary is not None:
            self._temporary.cleanup()

    def _compact(self) -> None:
        """Copy states out of files that are mostly dead; remove files that no pointer names.

        No commit may be under way, and no worker of this run be writing a file.
        """
        self.number += 1
        now, live = self._now, dict.fromkeys(self._now.files, 0)
        for client, name in self._where.items():
            live[name] += now.file(name).sizes[client]
        dead = {n for n in live if 2 * live[n] < sum(now.file(n).sizes.values())}
        dead = dead.difference(*(files for name, files in self._named.items() if name != HEAD))
        self.put({client: self[client] for client, name in self._where.items() if name in dead})
        used = set(self._where.values()).union(*self._named.values())
        for name in now.files.keys() - used:
            del now.files[name], now.opened[name]
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
        keys: dict[str, list[int]] = {}
        for client, name in self._where.items():
            keys.setdefault(name, []).append(client)
        files = {name: self._now.files[name]._replace(keys=tuple(of)) for name, of in keys.items()}
        path = new_path(self.folder, self.number)
        # copied, because a step of the next round may change its state in place
        server = map_blocks(lambda of: of.detach().cpu().contiguous().clone(), snapshot.server)

        def write() -> None:
            before()
            written = write_states(path, {SERVER: server})
            head = {**files, written.name: written}
            commits = {HEAD: Commit(self.folder, {"round": snapshot.round, **facts}, head)}
            if pin is not None:  # first, because a resumed run repeats what follows its head
                pinned = {**head, **{file.name: file for file in pin.files}}
                commits = {pin.name: Commit(self.folder, pin.facts, pinned), **commits}
            new = set[str]().union(*(commit.files for commit in commits.values()))
            for name in new.difference(self._named.get(HEAD, ())):
                sync(self.folder / name)
            sync(self.folder)
            for name, commit in commits.items():
                commit.write(name)
                self._named[name] = {*commit.files}

        self._writing = self._thread.submit(write)
        if not self._named:
            self.wait()

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
        numbers = map(_number_of, self.folder.glob("*.safetensors"))
        self.number, head = max(numbers, default=-1) + 1, commits.get(HEAD)
        self._now = head or Commit(self.folder)
        files = self._now.files.items()
        self._where = {key: name for name, file in files for key in file.keys if key >= 0}
        if head is None:
            return None
        return Checkpoint(Snapshot(head.facts["round"], head.find(SERVER) or {}), self, head.facts)

    def tidy(self) -> None:
        """Remove files that no pointer names, and the folder if it is empty."""
        if self.folder.is_dir():
            remove_torn(self.folder)
            self._compact()
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


def _number_of(path: Path) -> int:
    number, _, _ = path.name.partition("-")
    return int(number) if number.isdecimal() else -1
