"""Passes of prompts through one frozen encoder: each is made once.

A pass that is made before prompts are trained further is the forward pass of the step that trains
them, so it is kept until then. What came out of earlier passes is known by the prompts' content:
the runs of a sweep begin with the same prompts, and with equal seeds take the same first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

KNOWN_BYTES = 64 << 20
"""What outputs and gradients may take that are remembered; the least recently used go first."""


class Pass:
    """A pass through the encoder with what its gradients need.

    Args:
        prompts: v [C, m, d'].
        through: from prompts to text prototypes [C, d], differentiable.
    """

    def __init__(self, prompts: Tensor, through: Callable[[Tensor], Tensor]) -> None:
        self.leaf = prompts.detach().clone().requires_grad_()
        with torch.enable_grad():
            self.output = through(self.leaf)

    def gradient(self, of_output: Tensor) -> Tensor:
        """The gradient in the prompts [C, m, d'] for one in the output [C, d]; asked for once."""
        with torch.enable_grad():  # a sum: torch imports sympy to look at a gradient that is given
            weighed = (self.output * of_output).sum()
        [of_prompts] = torch.autograd.grad(weighed, self.leaf)
        return of_prompts


class Passes:
    """The passes of one encoder: whole ones that wait for a step, and what earlier ones gave."""

    def __init__(self) -> None:
        self._whole: dict[Hashable, Pass] = {}  # the oldest first
        self._known: dict[Hashable, Tensor] = {}  # the least recently used first

    def keep(self, key: Hashable, made: Pass, most: int) -> None:
        """Keep a pass until it is taken, or `most` later ones were made."""
        self._whole[key] = made
        while len(self._whole) > most:
            del self._whole[next(iter(self._whole))]

    def take(self, key: Hashable) -> Pass | None:
        """A pass that was kept; it serves once."""
        return self._whole.pop(key, None)

    def find(self, key: Hashable) -> Tensor | None:
        """A copy of what is known."""
        found = self._known.pop(key, None)
        if found is None:
            return None
        self._known[key] = found
        return found.clone()

    def learn(self, key: Hashable, value: Tensor) -> None:
        """Remember an output or a gradient."""
        self._known[key] = value.detach().clone()
        held = sum(each.nbytes for each in self._known.values())
        while held > KNOWN_BYTES:
            held -= self._known.pop(next(iter(self._known))).nbytes


def content(tensor: Tensor, asked: Sequence[Hashable] = ()) -> Hashable:
    """A key that equal tensors have in common, for equal questions."""
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return (hashlib.blake2b(values.data).digest(), tensor.shape, tensor.dtype, *asked)


class Continued(torch.autograd.Function):
    """The output of an earlier pass, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        prompts: Tensor,
        output: Tensor,
        key: Hashable,
        passes: Passes,
        whole: Callable[[], Pass],
    ) -> Tensor:
        """The output.

        Args:
            ctx: torch's.
            prompts: v [C, m, d'].
            output: of the pass [C, d].
            key: of the pass.
            passes: know gradients, too.
            whole: the pass, made if it must be.
        """
        ctx.key, ctx.passes, ctx.whole = key, passes, whole
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient in the prompts."""
        passes, whole, ctx.whole = ctx.passes, ctx.whole, None
        key = (ctx.key, content(gradients[0]))
        found = passes.find(key)
        if found is None:
            found = whole().gradient(gradients[0])
            passes.learn(key, found)
        return found, None, None, None, None
