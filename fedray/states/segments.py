"""Files of clients' states: a record after the other, of which what is asked for is mapped.

A record is the length of its table (8 bytes), the table (JSON: how the tensors are nested, in their
order, each with type, shape and offset) and the tensors' content, each at a multiple of 64 bytes.
A large state has a file of its own, which goes when the client has another; small ones share one.
Of large tensors with the same content that are written one after the other the first alone is
stored: clients often keep what all of them were sent (DP2FL: everybody's validation images).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedray.core import ClientState, StateTree
from fedray.core.state import leaves
from fedray.errors import UserError

LARGE_STATE = 100_000
"""Bytes from which on a state has a file of its own."""
LARGE_TENSOR = 2**12
"""Bytes from which on tensors with the same content are stored once."""
_ALIGNED = 64
_SAMPLES = 64
_DAMAGE = (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError)
"""What is raised by reading what was not written so."""


class Place(NamedTuple):
    """Where a state rests.

    Attributes:
        file: the name of the file.
        offset: of its record there, in bytes.
        length: of the record, in bytes.
        checksum: SHA-256 of the record and of what it has in other files, in hexadecimal digits.
        shared: names of other files that hold tensors of it.
    """

    file: str
    offset: int
    length: int
    checksum: str
    shared: tuple[str, ...] = ()


class _Stored(NamedTuple):
    """Where a large tensor is stored: bytes from `offset` of a file."""

    file: str
    offset: int


def state_size(state: ClientState) -> int:
    """Bytes of a state's tensors."""
    return sum(leaf.nbytes for _, leaf in leaves(vars(state)))


class SegmentWriter:
    """Writes states into files of a folder, which is made when it is missing.

    Args:
        folder: of the files.
        name: gives a new name for a file.

    Attributes:
        files: the names of the files that were written.
    """

    def __init__(self, folder: Path, name: Callable[[], str]) -> None:
        self._folder = folder
        self._name = name
        self._open: tuple[str, BinaryIO] | None = None
        self._known: dict[Any, _Stored] = {}
        self.files: list[str] = []

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if kind is not None:
            for name in self.files:
                with suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)

    def add(self, state: ClientState) -> Place:
        """Write one state; it can be read once the writer is closed, a large one at once.

        Raises:
            OSError: when it cannot be written.
        """
        is_large = state_size(state) >= LARGE_STATE
        record = _Record(self._stored if is_large else None)
        tree = record.tree(vars(state))
        table = json.dumps(tree).encode()
        head = len(table).to_bytes(8, "little") + table
        head += bytes(_padding(len(head)))
        digest = hashlib.sha256()
        name, file = self._file(is_large)
        start = file.tell()
        for content in (np.frombuffer(head, np.uint8), *record.contents):
            padding = bytes(_padding(content.nbytes))
            for part in (content.data, padding):
                file.write(part)
                digest.update(part)
        for content in record.elsewhere:
            digest.update(content.data)
        shared, length = tuple(sorted(record.shared)), len(head) + record.length
        place = Place(name, start, length, digest.hexdigest(), shared)
        if is_large:
            file.close()
            for key, offset in record.new.items():
                self._known[key] = _Stored(place.file, start + len(head) + offset)
        return place

    def close(self) -> None:
        """Close the file that small states share."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _file(self, is_large: bool) -> tuple[str, BinaryIO]:
        """A new file with its name, or the one that small states share."""
        if not is_large and self._open is not None:
            return self._open
        self._folder.mkdir(parents=True, exist_ok=True)
        name = self._name()
        file = (self._folder / name).open("xb")
        self.files.append(name)
        if not is_large:
            self._open = name, file
        return name, file

    def _stored(self, key: Any, content: np.ndarray) -> _Stored | None:
        """Where a tensor with this content was stored before, if it was."""
        found = self._known.get(key)
        if found is None:
            return None
        stored = _mapped(self._folder / found.file, found.offset, content.nbytes)
        return found if np.array_equal(stored, content) else None


class _Record:
    """What is made of one state: its table and the contents to be stored.

    Args:
        stored: says where a large tensor is stored already; None: tensors are not looked for.
    """

    def __init__(self, stored: Callable[[Any, np.ndarray], _Stored | None] | None) -> None:
        self._stored = stored
        self._mine: dict[Any, tuple[int, np.ndarray]] = {}
        self.contents: list[np.ndarray] = []
        self.elsewhere: list[np.ndarray] = []
        self.length = 0
        self.shared: set[str] = set()

    @property
    def new(self) -> dict[Any, int]:
        """The offsets of the large tensors that it stores itself, by what they are known by."""
        return {key: offset for key, (offset, _) in self._mine.items()}

    def tree(self, branch: StateTree) -> dict[str, Any]:
        """The table of a branch; leaves are [type, shape, offset] or with the other file's name."""
        return {
            key: self.tree(value) if isinstance(value, Mapping) else self._leaf(value)
            for key, value in branch.items()
        }

    def _leaf(self, tensor: Tensor) -> list[Any]:
        kept = tensor.detach().cpu().contiguous()
        content = kept.reshape(-1).view(torch.uint8).numpy()
        fact: list[Any] = [str(kept.dtype).removeprefix("torch."), list(kept.shape)]
        if self._stored is None or content.nbytes < LARGE_TENSOR:
            return [*fact, self._append(content)]
        key = (fact[0], tuple(kept.shape), _sample(content))
        if key in self._mine and np.array_equal(self._mine[key][1], content):
            return [*fact, self._mine[key][0]]
        elsewhere = self._stored(key, content)
        if elsewhere is not None:
            self.shared.add(elsewhere.file)
            self.elsewhere.append(content)
            return [*fact, elsewhere.offset, elsewhere.file]
        offset = self._append(content)
        self._mine.setdefault(key, (offset, content))
        return [*fact, offset]

    def _append(self, content: np.ndarray) -> int:
        offset = self.length
        self.contents.append(content)
        self.length += content.nbytes + _padding(content.nbytes)
        return offset


def read_state(folder: Path, place: Place) -> ClientState:
    """A state from its file; its tensors are mapped, so memory holds them as long as it likes.

    Raises:
        UserError: when the file is missing or cut.
    """
    path = folder / place.file
    try:
        record = _mapped(path, place.offset, place.length)
        table, data = _table(record)
        return ClientState(**_tensors(table, record[data:], folder))
    except _DAMAGE as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> UserError:
    """Return the error that says what is wrong with a file that cannot be read."""
    where = getattr(error, "filename", None) or path
    is_missing = isinstance(error, FileNotFoundError)
    if isinstance(error, PermissionError) or (is_missing and os.path.exists(where)):
        # safetensors says that a file is not there when it may not be read
        return UserError(
            f"{where} may not be read by this account; ask its owner for the right, or start anew "
            "with another --out"
        )
    reason = "it is missing" if is_missing else error
    return UserError(
        f"{where} is damaged ({reason}); restore it from a copy, or start anew with another --out"
    )


def check_state(folder: Path, place: Place) -> None:
    """Look at every byte of a state.

    Raises:
        UserError: when its file is damaged or missing.
    """
    path = folder / place.file
    try:
        if _checksum(path, place) != place.checksum:
            raise ValueError("its content does not fit its checksum")
    except _DAMAGE as error:
        raise damaged(path, error) from None


def _checksum(path: Path, place: Place) -> str:
    record = _mapped(path, place.offset, place.length)
    digest = hashlib.sha256(record.data)
    if place.shared:
        for _, kind, shape, *where in _facts(_table(record)[0]):
            if len(where) > 1:
                digest.update(_elsewhere(path.parent, kind, shape, where).data)
    return digest.hexdigest()


def _facts(table: Mapping[str, Any]) -> Iterator[list[Any]]:
    for path, leaf in leaves(table):
        yield [path, *leaf]


def _tensors(table: Mapping[str, Any], data: np.ndarray, folder: Path) -> dict[str, Any]:
    return {
        key: _tensors(value, data, folder)
        if isinstance(value, Mapping)
        else _tensor(value, data, folder)
        for key, value in table.items()
    }


def _tensor(leaf: list[Any], data: np.ndarray, folder: Path) -> Tensor:
    kind, shape, *where = leaf
    if len(where) > 1:
        content = _elsewhere(folder, kind, shape, where)
    else:
        content = data[where[0] : where[0] + _nbytes(kind, shape)]
    if content.nbytes == 0:
        return torch.empty(shape, dtype=_dtype(kind))
    return torch.from_numpy(content).view(_dtype(kind)).reshape(shape)


def _elsewhere(folder: Path, kind: str, shape: list[int], where: list[Any]) -> np.ndarray:
    offset, file = where
    return _mapped(folder / file, offset, _nbytes(kind, shape))


def _dtype(kind: str) -> torch.dtype:
    found = getattr(torch, kind)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{kind} is no type of tensors")
    return found


def _nbytes(kind: str, shape: list[int]) -> int:
    return _dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))


def _table(record: np.ndarray) -> tuple[Mapping[str, Any], int]:
    """A record's table, and where its tensors begin."""
    length = int.from_bytes(record[:8].tobytes(), "little")
    end = 8 + length
    return json.loads(record[8:end].tobytes()), end + _padding(end)


def _mapped(path: Path, offset: int, length: int) -> np.ndarray:
    """Bytes of a file as uint8 [length], mapped; to write to them changes no file."""
    if length == 0:
        return np.empty(0, np.uint8)
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pages = mmap.mmap(
            descriptor, offset - start + length, access=mmap.ACCESS_COPY, offset=start
        )
    finally:
        os.close(descriptor)
    return np.frombuffer(pages, np.uint8, length, offset - start)


def _padding(length: int) -> int:
    return -length % _ALIGNED


def _sample(content: np.ndarray) -> bytes:
    """A few of the bytes: tensors that differ there need no further look."""
    return content[:: max(1, content.nbytes // _SAMPLES)].tobytes()
