"""What runs of one process share: values by what they are made of, within a bound on memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from mmap import mmap
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch

V = TypeVar("V")

MOST_BYTES = 1 << 30
"""What the values of a process may take together, besides the one that was asked for last."""


class Cache:
    """Values that nobody changes, by key; the least recently used go first.

    A key names everything that its value is made of, so that whoever finds one has what they would
    have made. The bound holds whenever a value has been added. What was asked for last is kept
    whatever its size: its user holds it anyway.

    Args:
        most_bytes: what all values may take together.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._values: dict[Hashable, Any] = {}  # the least recently used first
        self._lock = RLock()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not there; what `make` raises leaves nothing.

        Args:
            key: all that the value is made of.
            make: makes it; no other thread finds anything meanwhile.
        """
        with self._lock:
            found = key in self._values
            value: V = self._values.pop(key) if found else make()
            self._values[key] = value
            if not found:
                self._make_room()
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes(self) -> int:
        """What the values take."""
        with self._lock:
            return sum(map(held_bytes, self._values.values()))

    def _make_room(self) -> None:
        """Measure anew: a value may have loaded parts since it was added."""
        sizes = {key: held_bytes(value) for key, value in self._values.items()}
        taken = sum(sizes.values())
        for key in list(self._values)[:-1]:
            if taken <= self._most:
                return
            del self._values[key]
            taken -= sizes[key]


def held_bytes(value: Any) -> int:
    """Bytes of the arrays and tensors that an object of this package holds, mapped files apart."""
    sizes: dict[int, int] = {}
    for each in _leaves(value, set()):
        if isinstance(each, torch.Tensor):
            sizes[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        elif isinstance(each, bytes):
            sizes[id(each)] = len(each)
        else:
            sizes[id(each)] = 0 if _is_mapped(each) else each.nbytes
    return sum(sizes.values())


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor | np.ndarray | bytes):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each, seen)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _leaves(each, seen)
    elif type(value).__module__.startswith("fedray."):
        yield from _leaves(getattr(value, "__dict__", {}), seen)


def _is_mapped(array: np.ndarray[Any, Any]) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array.base, mmap)


shared = Cache()
"""The process's own."""
