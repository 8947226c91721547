"""Counts of what a step does: optimiser steps, images that models read, trained parameters.

A step opens a `Tally`. Torch calls `_note_step` before each step of each optimiser, and models
report the images that they read. Nothing here changes a number or draws a random one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


@dataclass(eq=False)
class Tally:
    """Counts of one step.

    Attributes:
        steps: of all optimisers.
        images: read by models, in training and in evaluation mode; each time that one is read.
        trained: the tensors that had a gradient at a step of an optimiser, by id.
    """

    steps: int = 0
    images: int = 0
    trained: dict[int, Tensor] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Return how many numbers the trained tensors hold."""
        return sum(tensor.numel() for tensor in self.trained.values())


_open: Tally | None = None


@contextmanager
def counted() -> Iterator[Tally]:
    """Count until the end of the block; a block inside another one counts for itself alone."""
    global _open
    outer, _open = _open, Tally()
    try:
        yield _open
    finally:
        _open = outer


def note_images(count: int) -> None:
    """Count images that a model reads."""
    if _open is not None:
        _open.images += count


def _note_step(optimizer: Optimizer, *_: Any) -> None:
    if _open is None:
        return
    _open.steps += 1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                _open.trained[id(parameter)] = parameter


register_optimizer_step_pre_hook(_note_step)
