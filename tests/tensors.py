"""Random tensors, and comparisons of named ones, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, the same for the same seed."""
    return torch.randn(shape, generator=seeded(seed), dtype=dtype)


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two sets of named tensors are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
