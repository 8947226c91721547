"""Cache of passes of prompts through one frozen encoder, by the content of the prompts.

The pass that computes the prototypes of a round is also the forward pass of the next server step,
so its activations are kept until then. Its output is kept longer, since the runs of a sweep begin
with equal prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_PASSES = 32
"""Maximal number of cached passes; the least recently used are dropped first."""


class Graph:
    """The activations of a pass, which serve for one backward pass.

    Args:
        prompts: v [C, m, d'].
        through: maps prompts to text prototypes [C, d]; differentiable.

    Attributes:
        output: text prototypes [C, d], detached.
    """

    def __init__(self, prompts: Tensor, through: Callable[[Tensor], Tensor]) -> None:
        self._leaf = prompts.detach().clone().requires_grad_()
        with torch.enable_grad():
            self._result = through(self._leaf)
        self.output = self._result.detach().clone()

    def gradient(self, of_output: Tensor) -> Tensor:
        """Return the gradient of the prompts [C, m, d'], given that of the output [C, d]; once."""
        with torch.enable_grad():  # via a sum, because torch imports sympy to check `grad_outputs`
            weighed = (self._result * of_output).sum()
        [of_prompts] = torch.autograd.grad(weighed, self._leaf)
        return of_prompts


@dataclass
class Pass:
    """A cached pass.

    Attributes:
        output: text prototypes [C, d].
        graph: the activations, until a training step takes them; else None.
        nbytes: size of the activations.
    """

    output: Tensor
    graph: Graph | None = None
    nbytes: float = 0.0

    def take(self) -> Graph | None:
        """Remove and return the activations; None if there are none."""
        graph, self.graph, self.nbytes = self.graph, None, 0.0
        return graph


class Passes:
    """The cached passes of one encoder, bounded in number and bytes."""

    def __init__(self) -> None:
        self._passes: dict[Hashable, Pass] = {}  # the least recently used first

    def find(self, key: Hashable) -> Pass | None:
        """Return the cached pass of a key, or None; mark it as recently used."""
        cached = self._passes.pop(key, None)
        if cached is not None:
            self._passes[key] = cached
        return cached

    def keep(self, key: Hashable, made: Pass, most: float) -> None:
        """Cache a pass, and drop old passes until all activations fit into `most` bytes."""
        self._passes[key] = made
        total = sum(cached.nbytes for cached in self._passes.values())
        while total > most or len(self._passes) > MOST_PASSES:
            total -= self._passes.pop(next(iter(self._passes))).nbytes


def prompts_key(tensor: Tensor, *options: Hashable) -> Hashable:
    """Return a key that is equal for equal tensors and options."""
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return (hashlib.blake2b(values.data).digest(), tensor.shape, tensor.dtype, *options)


class Continued(torch.autograd.Function):
    """The output of an earlier pass, with a backward pass through its activations."""

    @staticmethod
    def forward(ctx: Any, prompts: Tensor, graph: Graph) -> Tensor:
        """Return the output [C, d] for prompts [C, m, d']."""
        del prompts  # equal to the prompts of the earlier pass
        ctx.graph = graph
        return graph.output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the prompts."""
        graph, ctx.graph = ctx.graph, None
        return graph.gradient(gradients[0]), None
