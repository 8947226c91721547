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

from fedray.base.counts import stop_counting
from fedray.base.flat import tensor_blocks
from fedray.base.streams import module_of, torch_states
from fedray.base.trees import StateTree

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
        self._own = read_flags()

    @contextmanager
    def set(self) -> Iterator[None]:
        """Set the run's flags in the block; remember them, and restore those of the process."""
        others = read_flags()
        set_flags(self._own)
        try:
            yield
        finally:
            self._own = read_flags()
            set_flags(others)
            stop_counting()


class Isolation:
    """Runs steps with the torch flags that were set when the object was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = module_of(device)
        self._flags = read_flags()

    @contextmanager
    def group(self, seed: int | None = None) -> Iterator[None]:
        """Restore flags and global generators at the end; seed those of a single step."""
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        before = torch_states(self._device)
        try:
            if seed is not None:
                self.seed(seed)
            yield
        finally:
            torch.set_rng_state(before[0])
            if self._module is not None:
                self._module.set_rng_state(before[1])
            set_flags(self._flags)
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002

    def seed(self, seed: int) -> None:
        """Seed the global generators, which layers such as dropout use, within a `group`."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` seeds every device
        if self._module is not None:
            self._module.manual_seed(seed)


class ReadOnly:
    """What steps may read and not change: a download, or a client's state.

    Args:
        name: what it is, for the message.
        tree: its tensors.
    """

    def __init__(self, name: str, tree: StateTree) -> None:
        self._name, self._blocks = name, tensor_blocks(tree)
        self._versions = [block._version for block in self._blocks]

    def check(self) -> None:
        """Raise a TypeError if an operation in place has changed a tensor."""
        if [block._version for block in self._blocks] != self._versions:
            raise TypeError(
                f"the step wrote into {self._name}, which it may only read; change a copy"
            )
