"""Random streams that depend on (seed, purpose, round, client) alone, never on global state.

A resumed run therefore needs no saved generator state, and draws do not depend on the order in
which workers run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@contextmanager
def torch_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, which layers such as dropout use; restore them on exit.

    Args:
        seed: the seed of both generators.
        device: the device whose generator is seeded besides the CPU's.
    """
    import torch

    module, before = module_of(device), torch_states(device)
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds every device
    if module is not None:
        module.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        if module is not None:
            module.set_rng_state(before[1])


def torch_states(device: torch.device) -> list[torch.Tensor]:
    """Return the states of torch's global generators: the CPU's, and the device's if it differs."""
    import torch

    module = module_of(device)
    return [torch.get_rng_state(), *([] if module is None else [module.get_rng_state()])]


def module_of(device: torch.device) -> Any:
    """Return torch's module of a device, which has its generator; None for the CPU."""
    import torch

    return None if device.type == "cpu" else torch.get_device_module(device)
