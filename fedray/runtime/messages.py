"""Transport of tensors between Ray's processes, as NumPy arrays that the receiver maps."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from ray.util import register_serializer
from torch import Tensor

from fedray.trees import aligned


def register_tensors() -> None:
    """Let this process (driver, server or worker) send and receive tensors.

    A received tensor may be a view of read-only shared memory, which Ray keeps as long as the view
    lives. Steps only read it, so torch's warning about read-only arrays is silenced.
    """
    register_serializer(Tensor, serializer=_array, deserializer=_tensor)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def _array(tensor: Tensor) -> Any:
    return tensor.numpy()


def _tensor(array: Any) -> Tensor:
    return aligned(torch.from_numpy(array))
