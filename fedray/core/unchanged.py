"""A method's attributes, which its steps may read and not change: nothing keeps or sends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedray.errors import UserError

DEPTH = 3
"""How deep containers are looked into: `self.seen[client.id]["mean"]` is at the third."""
LARGE = 1 << 16
"""Bytes of an array; a larger one is not read before and after every step."""

_NONE = object()
_PLAIN = frozenset({int, float, str, bool, bytes, complex, type(None)})
_CONTAINERS = (dict, list, set, deque)
_NUMBERS = (Tensor, nn.Module, np.ndarray)


class Unchanged:
    """Objects whose attributes no step may set, nor change in place.

    Looked at are containers up to `DEPTH`, tensors, modules' tensors, and small NumPy arrays.
    What a class declares as a `cached_property` is a cache, which may be made at any time.

    Args:
        shared: the objects.
        by: whose step it is, for the message.
        because: what is wrong about it, and what would be right.
    """

    def __init__(self, *shared: Any, by: str, because: str) -> None:
        self._shared = shared
        self._by = by
        self._because = because

    def __enter__(self) -> None:
        self._before = [(each, dict(vars(each))) for each in self._shared]
        self._looks = [look for each, before in self._before for look in _looks_at(each, before)]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Set back what was changed.

        Raises:
            TypeError: naming an attribute that was set or changed, where nothing else was raised.
            UserError: naming one that cannot be set back: every later step would find it so.
        """
        changed = [look for look in self._looks if not look.is_same()]
        found = [f"set {name}" for each, before in self._before for name in _set_back(each, before)]
        found += [f"changed what is in {look.name}" for look in changed]
        lost = [look.name for look in changed if not look.put_back()]
        if lost and (kind is None or _is_fault(kind)):
            raise UserError(self._said(f"changed what is in {lost[0]}"))
        if found and kind is None:
            raise TypeError(self._said(found[0]))

    def _said(self, what: str) -> str:
        return f"{self._by} has {what}, {self._because}"


class _Look(NamedTuple):
    """What was in one value that can be changed in place."""

    name: str
    value: Any
    mark: Any

    def is_same(self) -> bool:
        """Whether that is in it still."""
        now = _mark(self.value)
        if isinstance(self.value, _CONTAINERS):
            return len(now) == len(self.mark) and all(map(is_, now, self.mark))
        return bool(now == self.mark)

    def put_back(self) -> bool:
        """Give a container the members that it had; returns False for all else."""
        value, mark = self.value, self.mark
        if not isinstance(value, _CONTAINERS):
            return False
        value.clear()
        if isinstance(value, dict):
            half = len(mark) // 2
            for key, member in zip(mark[:half], mark[half:], strict=True):
                value[key] = member
        elif isinstance(value, set):
            value.update(mark)
        else:
            value.extend(mark)
        return True


def _is_fault(kind: type[BaseException]) -> bool:
    """Whether what was raised is neither an interruption nor said to the user already."""
    return issubclass(kind, Exception) and not issubclass(kind, UserError)


def _looks_at(each: Any, attributes: dict[str, Any]) -> Iterator[_Look]:
    """What can be changed in place of an object's attributes, its caches left out."""
    kind = type(each)
    for name, value in attributes.items():
        if type(value) not in _PLAIN and not _is_cache(kind, name):
            yield from _looks(f"{kind.__name__}.{name}", value, DEPTH)


def _looks(name: str, value: Any, depth: int) -> Iterator[_Look]:
    members: Iterable[Any] = ()
    if isinstance(value, tuple):
        members = value
    elif isinstance(value, _CONTAINERS):
        members = _mark(value)
        yield _Look(name, value, members)
    elif isinstance(value, _NUMBERS):
        yield _Look(name, value, _mark(value))
    if depth > 1:
        for member in members:
            if type(member) not in _PLAIN:
                yield from _looks(name, member, depth - 1)


def _mark(value: Any) -> Any:
    """A container's members, to be compared by identity; of all else what can be compared."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, _CONTAINERS):  # the order of a set is another when it is filled again
        return sorted(value, key=id) if isinstance(value, set) else list(value)
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, nn.Module):
        return [_of_tensor(each) for each in (*value.parameters(), *value.buffers())]
    return value.shape, value.tobytes() if value.nbytes <= LARGE else b""


def _of_tensor(tensor: Tensor) -> tuple[int, int]:
    """Where it is, and how often it was written, as far as PyTorch says that."""
    try:
        return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
    except RuntimeError:  # a sparse one has no one place
        return 0, tensor._version


def _is_cache(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)


def _set_back(each: Any, before: dict[str, Any]) -> list[str]:
    """Give an object the attributes that it had; returns the names of those that were others."""
    now = vars(each)
    if len(now) == len(before) and all(now.get(n, _NONE) is v for n, v in before.items()):
        return []
    kind = type(each)
    names = [n for n in {**before, **now} if now.get(n, _NONE) is not before.get(n, _NONE)]
    names = [n for n in names if n in before or not _is_cache(kind, n)]
    if names:
        now.clear()
        now.update(before)
    return [f"{kind.__name__}.{name}" for name in names]
