"""Torch's optimisers without torch's compiler: the same steps, the same numbers.

Torch wraps methods of its optimisers so that `torch.compile` leaves them alone, and each wrapper
imports `torch._dynamo` when it is called: a second and a half, and a hundred megabytes, in every
process. Nothing here is compiled. Torch has no switch for it, so these classes call what is inside
the wrappers (`functools.wraps` keeps it, and `inspect.unwrap` gives the method itself where a
version of torch does not wrap it):

- `torch._disable_dynamo` around `add_param_group` and `zero_grad`: tells the compiler only;
- `_use_grad_for_differentiable` around `step`: besides, turns gradients off, as here `no_grad`.
  `differentiable=True` is therefore not for these.

Hooks and profiling come with `Optimizer.__init__` and stay. tests/core/test_without_compiler.py
compares numbers and looks for the import.
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
    """`torch.optim.SGD`."""

    add_param_group = _ADD_GROUP
    zero_grad = _ZERO_GRAD

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's."""
        return _SGD_STEP(self, closure)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam`."""

    add_param_group = _ADD_GROUP
    zero_grad = _ZERO_GRAD

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's."""
        return _ADAM_STEP(self, closure)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    add_param_group = _ADD_GROUP
    zero_grad = _ZERO_GRAD

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, as torch's; AdamW is an Adam there, too."""
        return _ADAM_STEP(self, closure)
