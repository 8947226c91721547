"""Count the work of a client or server step: optimiser steps, images read, trained parameters.

`counted` opens a `Tally`, and adds a hook to all optimisers of the process: torch calls
`note_step` before each step. Models report the images that they read. Counting changes no
result and draws no random number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class Tallied(NamedTuple):
    """Numbers of optimiser steps, images read, and trained parameters of a client."""

    steps: int = 0
    images: int = 0
    parameters: int = 0

    def then(self, later: Tallied) -> Tallied:
        """Return the counts of two steps of one client, which may train the same parameters."""
        if self is NO_WORK:
            return later
        most = max(self.parameters, later.parameters)
        return Tallied(self.steps + later.steps, self.images + later.images, most)


NO_WORK = Tallied()


@dataclass(eq=False)
class Tally:
    """Tallied of the work of one client or server step.

    Attributes:
        steps: steps of all optimisers.
        images: images read by models, in training and in evaluation mode, repetitions included.
        trained: the tensors that had a gradient at an optimiser step, by id.
    """

    steps: int = 0
    images: int = 0
    trained: dict[int, Tensor] = field(default_factory=dict)

    def take(self) -> Tallied:
        """Return the counts, and begin again from zero."""
        if not (self.steps or self.images):
            return NO_WORK
        taken = Tallied(self.steps, self.images, self.parameters)
        self.steps = self.images = 0
        self.trained = {}
        return taken

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(map(torch.numel, self.trained.values()))


_open: Tally | None = None
_hook: RemovableHandle | None = None


@contextmanager
def counted() -> Iterator[Tally]:
    """Count work until the end of the block; work in a nested block counts in that one alone."""
    global _open, _hook
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(note_step)
    outer, _open = _open, Tally()
    try:
        yield _open
    finally:
        _open = outer


def stop_counting() -> None:
    """Remove the hook on all optimisers of this process; the next `counted` adds it again."""
    global _hook
    if _hook is not None:
        _hook.remove()
        _hook = None


def note_images(count: int) -> None:
    """Add `count` images to the open tally."""
    if _open is not None:
        _open.images += count


def note_step(optimizer: Optimizer, *_: Any) -> None:
    """Count a step of an optimiser in the open tally; torch calls this before every step."""
    if _open is None:
        return
    _open.steps += 1
    for group in optimizer.param_groups:
        learning = [parameter for parameter in group["params"] if parameter.grad is not None]
        _open.trained.update(zip(map(id, learning), learning, strict=True))
