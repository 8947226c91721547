"""Which kernels an encoder's operations use: repeatable ones, and those for its stored type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def same_bits(device: torch.device) -> Iterator[None]:
    """Use no fused attention kernels on a GPU, because their gradients vary between runs."""
    if device.type == "cuda":
        with sdpa_kernel(SDPBackend.MATH):
            yield
    else:
        yield


def as_stored(weight: Tensor) -> AbstractContextManager[Any]:
    """Return an autocast context for weights in bfloat16, else a context without effect."""
    if weight.dtype == torch.bfloat16:
        return torch.autocast(weight.device.type, torch.bfloat16)
    return nullcontext()


def halve(module: torch.nn.Module) -> None:
    """Convert the weights of linear maps and convolutions to bfloat16; see `as_stored`."""
    for part in module.modules():
        if isinstance(part, torch.nn.Linear | torch.nn.Conv2d):
            part.to(torch.bfloat16)
