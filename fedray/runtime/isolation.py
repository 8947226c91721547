"""A step changes nothing but what it returns: the process is as it was when the next one starts."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedray.core.state import StateTree, map_tensors

_NONE = object()


def _autocast() -> tuple[Any, ...]:
    devices = ("cpu", "cuda")
    return (
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices),
        torch.is_autocast_cache_enabled(),
        (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting())[1],
    )


def _set_autocast(before: tuple[Any, ...]) -> None:
    for device, (enabled, dtype) in zip(("cpu", "cuda"), before, strict=False):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(before[2])
    while _autocast()[3] > before[3]:
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


def _set_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


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


def _set_default_device(before: torch.device) -> None:
    torch.set_default_device(None if before.type == "cpu" else before)


_GLOBALS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_device, _set_default_device),  # first: the others may make tensors
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_anomaly, lambda before: torch.set_anomaly_enabled(*before)),
    (_autocast, _set_autocast),
    (_cudnn, _set_cudnn),
    (os.environ.copy, _set_environment),
    (_working_directory, _go_to),
    (lambda: (sys.stdout, sys.stderr), _set_streams),
)
"""What is global to a process and changes numbers or outputs: how it is read and set again."""


class Isolated:
    """A step's surroundings: random generators of its own, and everything as it was afterwards.

    Args:
        seed: of the global generators, which no method of the package draws from, but layers
            (dropout) and code of others may.
        device: where the step runs.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._cuda = device if device.type == "cuda" else None

    def __enter__(self) -> Self:
        self._before = [read() for read, _ in _GLOBALS]
        self._torch = torch.get_rng_state()
        self._on_cuda = None if self._cuda is None else torch.cuda.get_rng_state(self._cuda)
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        torch.default_generator.manual_seed(self._seed)
        if self._cuda is not None:
            torch.cuda.manual_seed(self._seed)
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)  # noqa: NPY002
        self._mode = torch.inference_mode(False)  # leaving it ends those that a step left open
        self._mode.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._mode.__exit__(None, None, None)
        for (read, restore), before in zip(_GLOBALS, self._before, strict=True):
            if read() != before:
                restore(before)
        torch.set_rng_state(self._torch)
        if self._on_cuda is not None and self._cuda is not None:
            torch.cuda.set_rng_state(self._on_cuda, self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


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


class Unchanged:
    """Objects that all steps share, whose attributes no step may set.

    Args:
        shared: the objects.
    """

    def __init__(self, *shared: Any) -> None:
        self._before = [(each, dict(vars(each))) for each in shared]

    def check(self) -> None:
        """Set back what was set.

        Raises:
            TypeError: naming the attribute.
        """
        found = ""
        for each, before in self._before:
            now = vars(each)
            names = {**before, **now}
            changed = [n for n in names if now.get(n, _NONE) is not before.get(n, _NONE)]
            if changed:
                found = f"{type(each).__name__}.{changed[0]}"
                now.clear()
                now.update(before)
        if found:
            raise TypeError(
                f"a client's step has set {found}, which all clients share; what a client keeps "
                "belongs into its ClientState"
            )
