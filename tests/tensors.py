"""Comparisons of named tensors, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two sets of named tensors are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
