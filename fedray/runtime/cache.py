"""Values that consecutive runs of one process share: partitioned data, text encoders, plots."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, TypeVar

V = TypeVar("V")


class Cache:
    """Values by kind and key; of each kind the least recently used go first."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Hashable, Any]] = {}  # the least recently used first
        self._lock = RLock()

    def get(self, kind: str, key: Hashable, make: Callable[[], V], most: int = 16) -> V:
        """Return the value of a key; make it if it is missing.

        Nobody changes a value. While one is made, other threads wait. If `make` raises an error,
        nothing is kept.

        Args:
            kind: values of one kind share the bound.
            key: everything that determines the value.
            make: makes it.
            most: number of values of this kind that are kept.
        """
        with self._lock:
            values = self._values.setdefault(kind, {})
            value: V = values.pop(key) if key in values else make()
            values[key] = value
            while len(values) > most:
                del values[next(iter(values))]
            return value

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()


shared = Cache()
"""The cache of this process."""
