"""Repeatable kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def same_bits(device: torch.device) -> AbstractContextManager[None]:
    """Use no fused attention kernels on a GPU, because their gradients vary between runs."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cuda" else nullcontext()
