"""Values that consecutive runs of one process share: partitioned data, text encoders."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

V = TypeVar("V")


class Cache:
    """A bounded cache of values by kind and key; the least recently used ones are evicted first."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Hashable, Any]] = {}  # least recently used first

    def get(self, kind: str, key: Hashable, make: Callable[[], V], most: int = 16) -> V:
        """Return the value of a key, which callers must not change; call `make` if it is missing.

        Args:
            kind: the kind of value; `most` bounds the values of each kind.
            key: everything that determines the value.
            make: returns a new value; nothing is stored if it raises an error.
            most: number of values of this kind that are kept.
        """
        values = self._values.setdefault(kind, {})
        value: V = values.pop(key) if key in values else make()
        values[key] = value
        while len(values) > most:
            del values[next(iter(values))]
        return value

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()


shared = Cache()
"""The cache of this process."""
