"""Tensors as arrays on their way through Ray's object store."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core import ClientState, Part, Payload
from fedray.federation import Reply

SMALL = 100_000  # bytes; up to this size Ray sends a value with the call itself
_PROTOCOL = 5


def pack(value: Any) -> Any:
    """Tensors as NumPy arrays, inside payloads, states, replies, parts of sums and mappings."""
    return _walk(value, Tensor, lambda tensor: tensor.numpy())


def unpack(value: Any) -> Any:
    """The inverse of `pack`, sealed or not.

    The tensors may be views of read-only shared memory, which stays as long as one of them.
    """
    return _walk(opened(value), np.ndarray, torch.from_numpy)


def sealed(value: Any) -> Any:
    """Something packed as bytes, if it is small: Ray sends them on without looking into them.

    Ray's own pickling asks Python about every object, and what it unpickles holds on to the whole
    message. What the standard pickle cannot do (a class without a module) stays as it is.
    """
    if size(value) > SMALL:
        return value
    try:
        return pickle.dumps(value, _PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return value


def opened(value: Any) -> Any:
    """The inverse of `sealed`."""
    return pickle.loads(value) if isinstance(value, bytes) else value


def accept_mapped_arrays() -> None:
    """Silence torch about read-only arrays: nobody writes to what was received (`Payload`)."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def size(value: Any) -> int:
    """Bytes of the arrays in something packed, or of what is sealed."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes):
        return len(value)
    return sum(size(item) for item in _parts(value))


def _parts(value: Any) -> Iterable[Any]:
    """What is looked for arrays in something packed."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, Payload | ClientState):
        return vars(value).values()
    if isinstance(value, Reply):
        return (value.uplink,)
    return value if isinstance(value, tuple | list) else ()


def _walk(value: Any, kind: type, convert: Any) -> Any:
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Payload | ClientState):
        return _with(value, {n: _walk(v, kind, convert) for n, v in vars(value).items()})
    if isinstance(value, Reply):
        return _with(value, {"uplink": _walk(value.uplink, kind, convert)})
    if isinstance(value, Part):
        return value._replace(sums=_walk(value.sums, kind, convert))
    if isinstance(value, Mapping):
        return {key: _walk(item, kind, convert) for key, item in value.items()}
    return value


def _with(value: Any, changes: Mapping[str, Any]) -> Any:
    """A dataclass with other fields; `dataclasses.replace` takes ten times as long."""
    changed = object.__new__(type(value))
    vars(changed).update(vars(value), **changes)
    return changed
