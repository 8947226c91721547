"""The clients' states of one run: changes since the last checkpoint, on top of its database.

New states stay in memory, up to a limit; large ones are in files that their workers wrote. A
checkpoint writes them to the database during the next round. A client that is not accessed costs
one dictionary entry.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from fedray.storage.database import Entry, StateDatabase
from fedray.storage.entries import own_entries
from fedray.storage.tensors import ROW, TreeFile, read_tree, tree_bytes, write_tree
from fedray.trees import ClientState, StateTree, private_copy

MEMORY = 512 * 2**20
"""Most bytes of states that a process keeps in memory."""
State: TypeAlias = ClientState | TreeFile


class _Layer:
    """The last state of each client from one span of time."""

    def __init__(self) -> None:
        self.states: OrderedDict[int, ClientState] = OrderedDict()  # most recently used last
        self.places: dict[int, TreeFile] = {}  # in files
        self.nbytes = 0  # in memory

    def find(self, client: int) -> State | None:
        if client not in self.states:
            return self.places.get(client)
        self.states.move_to_end(client)
        return self.states[client]

    def put(self, client: int, state: State) -> TreeFile | None:
        """Replace a client's state; return the place of the previous one, if it was in a file."""
        self.forget(client)
        if isinstance(state, TreeFile):
            old, self.places[client] = self.places.get(client), state
            return old
        self.states[client] = state
        self.nbytes += state_size(state)
        return self.places.pop(client, None)

    def forget(self, client: int) -> None:
        state = self.states.pop(client, None)
        if state is not None:
            self.nbytes -= state_size(state)

    def items(self) -> dict[int, State]:
        return {**self.states, **self.places}


class StateStore(Mapping[int, ClientState]):
    """A mapping of client ids to states; a client that has never run a step has no state.

    Args:
        folder: the folder of the database and files; None keeps files only, in a temporary folder.
        memory: most bytes of states that are kept in memory.
    """

    def __init__(self, folder: Path | None = None, memory: int = MEMORY) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._database = None if folder is None else StateDatabase(folder.absolute())
        self._memory = memory
        self._dirty, self._saving, self._clean = _Layer(), _Layer(), _Layer()
        self._held = 0

    @property
    def database(self) -> StateDatabase:
        """Return the last checkpoint: states, and further data under negative numbers."""
        if self._database is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedray-states-")
            self._database = StateDatabase(Path(self._temporary.name))
        return self._database

    @property
    def folder(self) -> Path:
        """Return the folder of the files."""
        return self.database.files

    @property
    def nbytes(self) -> int:
        """Return the bytes of the states in memory."""
        return self._dirty.nbytes + self._saving.nbytes + self._clean.nbytes

    def __getitem__(self, client: int) -> ClientState:
        """Return a client's state."""
        state = self.find(client)
        if state is None:
            raise KeyError(client)
        if isinstance(state, TreeFile):
            return ClientState(**read_tree(self.folder / state.file))
        return state

    def get(self, client: int, default: Any = None) -> Any:
        """Return a client's state, or `default`; faster than a mapping's `get`."""
        state = self.find(client)
        return default if state is None else self[client] if isinstance(state, TreeFile) else state

    def __iter__(self) -> Iterator[int]:
        clients = {number for number in self.database.places if number >= 0}
        for layer in (self._dirty, self._saving):
            clients.update(layer.states, layer.places)
        return iter(sorted(clients))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, client: int) -> State | None:
        """Return a client's state if it is in memory, else its place; None if it has no state."""
        for layer in (self._dirty, self._saving, self._clean):
            if client in layer.states or client in layer.places:
                return layer.find(client)
        place = self.database.places.get(client)
        if place is not ROW:
            return place
        state = ClientState(**self.database.read(client))
        self._clean.put(client, state)
        self._make_room()
        return state

    def put(self, client: int, state: State) -> None:
        """Store a client's next state, or the place where a worker has written it."""
        self._clean.forget(client)
        replaced = self._dirty.put(client, state)
        if replaced is not None:
            self.database.remove(replaced)
        self._make_room()

    def write(self, client: int, state: ClientState) -> None:
        """Write a client's next state to a file, without keeping it in memory."""
        self.put(client, self._write_file(state))

    def hold(self, tree: StateTree) -> Entry:
        """Return a private copy of a tree for the next checkpoint: in a file if memory is full."""
        if self.nbytes + self._held + tree_bytes(tree) > self._memory:
            return write_tree(self.folder / f"{self.database.new_name()}.safetensors", tree)
        self._held += tree_bytes(tree)
        return private_copy(tree)

    def begin(self) -> dict[int, State]:
        """Return the states that the next checkpoint must write; call `finish` afterwards."""
        self._saving, self._dirty, self._held = self._dirty, _Layer(), 0
        return self._saving.items()

    def finish(self, places: Mapping[int, TreeFile]) -> None:
        """Complete a checkpoint with the new places that the database returned."""
        self.database.places.update(places)
        for client, place in self._saving.places.items():
            if places[client] is ROW:
                self.database.remove(place)
        for client, state in self._saving.states.items():
            if self._dirty.find(client) is None:
                self._clean.put(client, state)
        self._saving = _Layer()

    def close(self) -> None:
        """Free all states except those of the last checkpoint."""
        for place in self._dirty.places.values():
            self.database.remove(place)
        self._dirty, self._saving, self._clean = _Layer(), _Layer(), _Layer()
        self.database.close()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._database = None

    def unused_files(self) -> list[Path]:
        """Return files that nothing references, left by a process that was killed."""
        unsaved = (*self._dirty.places.values(), *self._saving.places.values())
        used = self.database.used_files().union(place.file for place in unsaved)
        entries = own_entries(self.folder, "checkpoints/states")
        return sorted(path for path in entries if path.name not in used)

    def _write_file(self, state: ClientState) -> TreeFile:
        return write_tree(self.folder / f"{self.database.new_name()}.safetensors", vars(state))

    def _make_room(self) -> None:
        """Free states that the database has, then write others to files, the oldest first."""
        while self._clean.states and self.nbytes > self._memory:
            self._clean.forget(next(iter(self._clean.states)))
        while self._dirty.states and self.nbytes > self._memory:
            client, state = next(iter(self._dirty.states.items()))
            self._dirty.put(client, self._write_file(state))


def state_size(state: ClientState) -> int:
    """Return the bytes of a state's tensors."""
    return tree_bytes(vars(state))
