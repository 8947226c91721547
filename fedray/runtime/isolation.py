"""Isolation of client steps and tests: equal torch flags and separate random draws for each.

A changed torch flag, or a draw from a global generator, would change the numbers of the next step
in this process; results would depend on which steps a worker runs. Nothing else is restored:
`fedray check` finds methods that keep information outside their states.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor

from fedray.core import Payload
from fedray.counts import stop_counting
from fedray.streams import torch_seeded, torch_states
from fedray.trees import StateTree, map_together, moved_to

CPU = torch.device("cpu")
_Flag: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]


def _cudnn() -> tuple[bool, bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32


def _set_cudnn(flags: tuple[bool, bool, bool, bool]) -> None:
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32 = flags


FLAGS: tuple[_Flag, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_cudnn, _set_cudnn),
)
"""Getter and setter of each torch flag that changes numbers."""


def read_flags() -> list[Any]:
    """Return the values of `FLAGS`."""
    return [read() for read, _ in FLAGS]


def set_flags(values: Sequence[Any]) -> None:
    """Set `FLAGS` to what `read_flags` returned."""
    for (read, write), value in zip(FLAGS, values, strict=True):
        if read() != value:
            write(value)


class OwnFlags:
    """The torch flags of a run, which are set only while the run itself computes.

    The process may be the user's: before, between and after the rounds it has its own flags.
    """

    def __init__(self) -> None:
        self._own = self._others = read_flags()
        self._is_set = True

    def leave(self) -> None:
        """Remember the run's flags, and set those of the process."""
        if self._is_set:
            self._own, self._is_set = read_flags(), False
            set_flags(self._others)
            stop_counting()

    def enter(self) -> None:
        """Remember the flags of the process, and set the run's."""
        if not self._is_set:
            self._others, self._is_set = read_flags(), True
            set_flags(self._own)


class Isolation:
    """Runs each step with the torch flags that were set when the object was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flags = read_flags()
        self._unused: list[np.random.MT19937] = []  # a step inside a step needs its own

    @contextmanager
    def step(self, seed: int) -> Iterator[None]:
        """Seed the global generators, which layers such as dropout use; restore them on exit."""
        python, numpy = random.getstate(), mtrand.get_bit_generator()
        own_numpy = self._unused.pop() if self._unused else np.random.MT19937()
        mtrand.set_bit_generator(own_numpy)  # swapping is faster than copying the state
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            with torch_seeded(seed, self._device):
                yield
        finally:
            set_flags(self._flags)
            random.setstate(python)
            mtrand.set_bit_generator(numpy)
            self._unused.append(own_numpy)


def generators(device: torch.device) -> tuple[object, ...]:
    """Return the states of the global generators of Python, NumPy, torch's CPU and a device."""
    numpy: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    states = [*torch_states(device), torch.from_numpy(numpy["key"])]
    blocks = [state.numpy().tobytes() for state in states]
    return *blocks, numpy["pos"], random.getstate()


class PrivateCopies:
    """Copies of a step's state and download on its device, which the step may change in place.

    The originals stay intact: a failed step does not change its client's state, and clients share
    their download.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._originals: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tree: StateTree) -> dict[str, Any]:
        """Return the tree with a copy of every tensor."""
        return map_together(self._copies, tree)

    def of_download(self, down: Payload, placed: Sequence[Tensor]) -> Payload:
        """Return a download with a copy of every tensor.

        Args:
            down: the download.
            placed: its tensors on the device.
        """
        copies = iter(placed)
        return down.map(lambda _, tensor: self._kept(next(copies).clone(), tensor))

    def _copies(self, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        for tensor, placed in zip(tensors, moved_to(tensors, self._device), strict=True):
            is_copied = placed.device != tensor.device
            yield self._kept(placed if is_copied else placed.clone(), tensor)

    def _kept(self, copied: Tensor, original: Tensor) -> Tensor:
        self._originals[id(copied)] = (copied, original)
        return copied

    def to_cpu(self, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield tensors on the CPU; for unchanged copies, the originals, which clients share."""
        for tensor, on_cpu in zip(tensors, moved_to(tensors, CPU), strict=True):
            copied, original = self._originals.get(id(tensor), (None, on_cpu))
            is_same = copied is tensor and original.is_cpu and torch.equal(on_cpu, original)
            yield original if is_same else on_cpu
