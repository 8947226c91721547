"""Random streams that depend on (seed, purpose, round, client) alone, never on global state.

A resumed run therefore needs no saved generator state, and draws do not depend on the order in
which workers run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Streams:
    """A family of independent random streams under one seed."""

    seed: int

    def entropy(self, purpose: str, *, round_: int = 0, client: int = 0) -> int:
        """Return the 63-bit seed of one stream, equal on every machine."""
        text = f"{self.seed}/{purpose}/{round_}/{client}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def numpy(self, purpose: str, *, round_: int = 0, client: int = 0) -> np.random.Generator:
        """Return a NumPy generator for one purpose, round and client."""
        return np.random.default_rng(self.entropy(purpose, round_=round_, client=client))

    def torch(self, purpose: str, *, round_: int = 0, client: int = 0) -> torch.Generator:
        """Return a CPU torch generator for one purpose, round and client."""
        import torch

        generator = torch.Generator()
        generator.manual_seed(self.entropy(purpose, round_=round_, client=client))
        return generator
