"""Whether a test looked at the round: one that did not has the same score in every round."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from fedray.core import Client

_T = TypeVar("_T")


def watched(client: Client, looked: list[str]) -> Client:
    """The client for a test; what the test reads of it that rounds change is noted.

    Args:
        client: the client in its round.
        looked: takes the names of what is read: the round itself, or its learning rate.
    """
    training = _noting(client.setting.training, "lr", looked)
    setting = replace(client.setting, training=training)
    return _noting(replace(client, setting=setting), "round", looked)


def _noting(value: _T, field: str, looked: list[str]) -> _T:
    """A copy of a dataclass that notes whenever a field of it is read."""
    kind: Any = type(value)
    copied = object.__new__(_type(kind, field))
    vars(copied).update(vars(value), _looked=looked)
    return copied  # type: ignore[no-any-return]


@cache
def _type(of: type, field: str) -> Any:
    def read(self: Any, name: str) -> Any:
        if name == field:  # a copy that `replace` made has no list: making it has read the field
            vars(self).get("_looked", []).append(name)
        return object.__getattribute__(self, name)

    return type(of.__name__, (of,), {"__getattribute__": read})
