"""Training of tensors on the server: prompts, generators, a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from fedray import core

B = TypeVar("B")


def train_on_server(
    tensors: Mapping[str, Tensor],
    loss: Callable[[core.Tensors, B], Tensor],
    batches: Iterable[B],
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
    device: torch.device,
) -> tuple[core.Tensors, Tensor]:
    """Train copies of tensors, one step for each batch.

    Args:
        tensors: initial values by name.
        loss: returns the loss of a batch from the current values.
        batches: the batches, in the order of the steps.
        optimizer: returns the optimiser of the copies.
        device: the device of the training.

    Returns:
        The trained values on the CPU, and the loss before the last step, 0 without steps.
    """
    trained = {
        name: tensor.detach().clone().to(device).requires_grad_()
        for name, tensor in tensors.items()
    }
    steps, value = optimizer(trained.values()), torch.zeros(())
    for batch in batches:
        steps.zero_grad()
        value = loss(trained, batch)
        value.backward()  # type: ignore[no-untyped-call]
        steps.step()
    return {name: tensor.detach().cpu() for name, tensor in trained.items()}, value.detach().cpu()
