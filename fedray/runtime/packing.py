"""Tensors as arrays on their way through Ray's object store."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.core import ClientState, Payload
from fedray.federation import Reply

SMALL = 100_000  # bytes; up to this size Ray sends a value with the call itself


def pack(value: Any) -> Any:
    """Tensors as NumPy arrays, inside payloads, states, replies and mappings: cheap to send."""
    return _walk(value, Tensor, lambda tensor: tensor.numpy())


def unpack(value: Any) -> Any:
    """The inverse of `pack`; the tensors may be views of read-only shared memory."""
    return _walk(value, np.ndarray, torch.from_numpy)


def accept_mapped_arrays() -> None:
    """Silence torch about read-only arrays: nobody writes to what was received (`Payload`)."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def size(value: Any) -> int:
    """Bytes of the arrays in something packed."""
    total = 0

    def add(array: np.ndarray) -> np.ndarray:
        nonlocal total
        total += array.nbytes
        return array

    _walk(value, np.ndarray, add)
    return total


def _walk(value: Any, kind: type, convert: Any) -> Any:
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Mapping):
        return {key: _walk(item, kind, convert) for key, item in value.items()}
    if isinstance(value, Reply):
        return dataclasses.replace(value, uplink=_walk(value.uplink, kind, convert))
    if isinstance(value, Payload | ClientState):
        changed = {
            field.name: _walk(getattr(value, field.name), kind, convert)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    return value
