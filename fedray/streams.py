"""Random streams: every draw comes from (seed, purpose, round, client), never from global state.

Nothing has to be saved to resume a run, and nothing depends on which worker draws first.
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
        """Return a 63-bit integer that identifies one stream, the same on every machine."""
        text = f"{self.seed}/{purpose}/{round_}/{client}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def numpy(self, purpose: str, *, round_: int = 0, client: int = 0) -> np.random.Generator:
        """Yield a NumPy generator for one purpose, round and client."""
        return np.random.default_rng(self.entropy(purpose, round_=round_, client=client))

    def torch(self, purpose: str, *, round_: int = 0, client: int = 0) -> torch.Generator:
        """Yield a CPU torch generator for one purpose, round and client."""
        import torch

        generator = torch.Generator()
        generator.manual_seed(self.entropy(purpose, round_=round_, client=client))
        return generator
