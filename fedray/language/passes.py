"""Passes of prompts through one frozen encoder, remembered by the content of the prompts.

The pass that gives a round's prototypes is the forward pass of the next server step, so its
activations are kept until then. Its output is kept longer: the runs of a sweep begin with the same
prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_PASSES = 32
"""Passes that are remembered; the least recently used are forgotten first."""


class Graph:
    """The activations of a pass, for one gradient.

    Args:
        prompts: v [C, m, d'].
        through: maps prompts to text prototypes [C, d], differentiable.

    Attributes:
        output: text prototypes [C, d], detached.
    """

    def __init__(self, prompts: Tensor, through: Callable[[Tensor], Tensor]) -> None:
        self._leaf = prompts.detach().clone().requires_grad_()
        with torch.enable_grad():
            self._result = through(self._leaf)
        self.output = self._result.detach().clone()

    def gradient(self, of_output: Tensor) -> Tensor:
        """Return the gradient in the prompts [C, m, d'] for one in the output [C, d]; once."""
        with torch.enable_grad():  # a sum: torch imports sympy to look at a gradient that is given
            weighed = (self._result * of_output).sum()
        [of_prompts] = torch.autograd.grad(weighed, self._leaf)
        return of_prompts


@dataclass
class Pass:
    """A remembered pass.

    Attributes:
        output: text prototypes [C, d].
        graph: its activations, until a training step takes them; None without.
        nbytes: size of the activations.
    """

    output: Tensor
    graph: Graph | None = None
    nbytes: float = 0.0

    def take(self) -> Graph | None:
        """Return the activations, which serve once."""
        graph, self.graph, self.nbytes = self.graph, None, 0.0
        return graph


class Passes:
    """The passes of one encoder, bounded in number and bytes."""

    def __init__(self) -> None:
        self._passes: dict[Hashable, Pass] = {}  # the least recently used first

    def find(self, key: Hashable) -> Pass | None:
        """Return a pass that is remembered."""
        found = self._passes.pop(key, None)
        if found is not None:
            self._passes[key] = found
        return found

    def keep(self, key: Hashable, made: Pass, most: float) -> None:
        """Remember a pass, and forget old ones until all fit into a number of bytes."""
        self._passes[key] = made
        held = sum(kept.nbytes for kept in self._passes.values())
        while held > most or len(self._passes) > MOST_PASSES:
            held -= self._passes.pop(next(iter(self._passes))).nbytes


def content(tensor: Tensor, asked: Sequence[Hashable] = ()) -> Hashable:
    """Return a key that equal tensors have in common, for equal questions."""
    values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return (hashlib.blake2b(values.data).digest(), tensor.shape, tensor.dtype, *asked)


class Continued(torch.autograd.Function):
    """The output of an earlier pass, whose backward pass goes through its activations."""

    @staticmethod
    def forward(ctx: Any, prompts: Tensor, graph: Graph) -> Tensor:
        """Return the output [C, d] for prompts [C, m, d']."""
        del prompts  # equal to those of the pass
        ctx.graph = graph
        return graph.output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient in the prompts."""
        graph, ctx.graph = ctx.graph, None
        return graph.gradient(gradients[0]), None
