"""A step changes nothing but what it returns: the process is as it was when the next one starts."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedray.core.state import StateTree, map_tensors
from fedray.runtime.devices import KINDS, random_state, seed_device, set_random_state

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AUTOCAST = ("cpu", *KINDS)


def _autocast() -> tuple[Any, ...]:
    return (
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST),
        torch.is_autocast_cache_enabled(),
        (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting())[1],
    )


def _set_autocast(before: tuple[Any, ...]) -> None:
    for device, (enabled, dtype) in zip(_AUTOCAST, before, strict=False):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    *_, caches, depth = before
    torch.set_autocast_cache_enabled(caches)
    while _autocast()[-1] > depth:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _cudnn() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return cudnn.benchmark, cudnn.deterministic, cudnn.enabled


def _set_cudnn(before: tuple[bool, bool, bool]) -> None:
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic, cudnn.enabled = before


def _environment() -> dict[bytes, bytes]:
    """The environment as it is stored: to decode and to encode it costs a hundred times as much."""
    return dict(vars(os.environ)["_data"])


def _set_environment(before: dict[bytes, bytes]) -> None:
    os.environb.clear()
    os.environb.update(before)


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        signal.signal(number, handler)


def _set_streams(before: tuple[Any, Any]) -> None:
    sys.stdout, sys.stderr = before


def _working_directory() -> str | None:
    """Where the process works; None where that folder is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _go_to(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _default_device() -> torch.device:
    return torch.empty(0).device  # ten times as fast as asking for it


def _set_default_device(before: torch.device) -> None:
    torch.set_default_device(None if before.type == "cpu" else before)


_Global: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]

_TORCH: tuple[_Global, ...] = (
    (_default_device, _set_default_device),  # first: the others may make tensors
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_anomaly, lambda before: torch.set_anomaly_enabled(*before)),
    (_autocast, _set_autocast),
    (_cudnn, _set_cudnn),
)
"""What changes numbers, as it is read and set: every step begins with what was at the start."""

_PROCESS: tuple[_Global, ...] = (
    (_environment, _set_environment),
    (_working_directory, _go_to),
    (lambda: (sys.stdout, sys.stderr), _set_streams),
    (_handlers, _set_handlers),
)
"""What else a process has one of: every step leaves it as it found it."""


class Surroundings:
    """What the steps of this process find, as it is when this is made.

    Args:
        device: where steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._torch = [read() for read, _ in _TORCH]
        self._numpy = np.random.MT19937()
        self._process: list[Any] | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The process and its random generators are afterwards what they were before.

        For the steps of one exchange together: to ask once is cheaper than once a step.
        """
        if self._process is not None:
            yield
            return
        _set(_TORCH, self._torch)
        self._process = [read() for read, _ in _PROCESS]
        generators = self._generators()
        try:
            yield
        finally:
            self._set_back()
            self._process = None
            self._set_generators(*generators)

    @contextmanager
    def isolated(self, seed: int) -> Iterator[None]:
        """The surroundings, and random generators of a step's own, whatever it does to them.

        Args:
            seed: of the global generators, which no method of the package draws from, but layers
                (dropout) and code of others may.
        """
        with self.kept():
            self._seed(seed)
            try:
                with torch.inference_mode(False):  # leaving it ends those that a step leaves open
                    yield
            finally:
                self._set_back()

    def random_states(self) -> tuple[object, ...]:
        """What the generators would draw next, to be compared."""
        device = random_state(self._device)
        return (
            torch.get_rng_state().numpy().tobytes(),
            None if device is None else device.cpu().numpy().tobytes(),
            random.getstate(),
            pickle.dumps(np.random.get_bit_generator().state),  # type: ignore[attr-defined]
        )

    def _set_back(self) -> None:
        assert self._process is not None
        _set(_TORCH, self._torch)
        _set(_PROCESS, self._process)

    def _seed(self, seed: int) -> None:
        """Seed the global generators."""
        torch.default_generator.manual_seed(seed)
        seed_device(self._device, seed)
        random.seed(seed)
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        np.random.seed(seed % 2**32)  # noqa: NPY002

    def _generators(self) -> tuple[Any, ...]:
        return (
            torch.get_rng_state(),
            random_state(self._device),
            random.getstate(),
            np.random.get_bit_generator(),  # type: ignore[attr-defined]
        )

    def _set_generators(self, cpu: Tensor, device: Tensor | None, python: Any, numpy: Any) -> None:
        torch.set_rng_state(cpu)
        set_random_state(self._device, device)
        random.setstate(python)
        np.random.set_bit_generator(numpy)  # type: ignore[attr-defined]


def _set(what: tuple[_Global, ...], before: Sequence[Any]) -> None:
    for (read, restore), value in zip(what, before, strict=True):
        if read() != value:
            restore(value)


class PrivateCopies:
    """Copies of what a step is given, so that it may do with them what it likes."""

    def __init__(self) -> None:
        self._originals: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tree: StateTree) -> dict[str, Any]:
        """The tree with a copy of every tensor."""
        return map_tensors(self.copy, tree)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy, whose original is remembered."""
        copied = tensor.clone()
        self._originals[id(copied)] = (copied, tensor)
        return copied

    def original(self, tensor: Tensor) -> Tensor:
        """The original of a copy that is as it was: what many clients keep stays one tensor."""
        copied, original = self._originals.get(id(tensor), (tensor, tensor))
        return original if copied is tensor and torch.equal(copied, original) else tensor
