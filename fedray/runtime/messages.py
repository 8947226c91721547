"""Transport of tensors between Ray's processes, as NumPy arrays that the receiver maps."""

from __future__ import annotations

import copyreg
import pickle
import warnings
from io import BytesIO
from typing import Any, TypeAlias

import torch
from ray.util import register_serializer
from torch import Tensor

from fedray.trees import aligned

SMALL = 100_000
"""Largest value, in bytes, that Ray sends inside the call itself."""


Message: TypeAlias = bytes
"""A small pickled value. Ray forwards bytes without calling Python for each object in them."""


def register_tensors() -> None:
    """Let this process (driver, server or worker) send and receive tensors.

    A received tensor may be a view of read-only shared memory, which Ray keeps as long as the view
    lives. Steps get private copies, so torch's warning about read-only arrays is silenced.
    """
    register_serializer(Tensor, serializer=_array, deserializer=_tensor)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def to_message(value: Any) -> Any:
    """Pickle a small value; return a large value unchanged.

    Ray's own pickler calls Python for every object, and a value that it unpickles keeps the memory
    of the whole call. A value that only Ray's pickler supports is returned unchanged, too.
    """
    file, buffers = BytesIO(), list[pickle.PickleBuffer]()
    try:
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return value
    parts = [buffer.raw() for buffer in buffers]
    if sum(part.nbytes for part in parts) > SMALL:
        return value
    return pickle.dumps((file.getvalue(), [bytes(part) for part in parts]))


def from_message(value: Any) -> Any:
    """Return the value that was passed to `to_message`."""
    if not isinstance(value, Message):
        return value
    head, buffers = pickle.loads(value)
    return pickle.loads(head, buffers=buffers)


def _array(tensor: Tensor) -> Any:
    return tensor.numpy()


def _tensor(array: Any) -> Tensor:
    return aligned(torch.from_numpy(array))


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | {Tensor: lambda t: (_tensor, (_array(t),))}
