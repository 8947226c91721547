"""Torch's optimisers without torch's compiler.

Theirs import `torch._dynamo` (a second and a half, and a hundred megabytes, in every process) when
they are made, only to tell it not to look into them. Nothing here is compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

_ADD_GROUP: Any = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_ZERO_GRAD: Any = inspect.unwrap(torch.optim.Optimizer.zero_grad)
_SGD_STEP: Any = inspect.unwrap(torch.optim.SGD.step)
_ADAM_STEP: Any = inspect.unwrap(torch.optim.Adam.step)


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, the same numbers."""

    add_param_group = _ADD_GROUP
    zero_grad = _ZERO_GRAD

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's."""
        return _SGD_STEP(self, closure)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`, the same numbers."""

    add_param_group = _ADD_GROUP
    zero_grad = _ZERO_GRAD

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's."""
        return _ADAM_STEP(self, closure)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, the same numbers."""

    add_param_group = _ADD_GROUP
    zero_grad = _ZERO_GRAD

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's; AdamW is an Adam there, too."""
        return _ADAM_STEP(self, closure)
