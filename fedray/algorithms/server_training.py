"""Training of tensors on the server: prompts, generators, a head."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from fedray import core
from fedray.core.optimizers import TorchSGD

B = TypeVar("B")


def train_on_server(
    server: core.Server,
    tensors: Mapping[str, Tensor],
    loss: Callable[[core.Tensors, B], Tensor],
    batches: Iterable[B],
    lr: float,
    optimizer: Callable[..., torch.optim.Optimizer] = TorchSGD,
) -> tuple[core.Tensors, Tensor]:
    """Train copies of tensors on the server's device, one step for each batch.

    `loss` returns the loss of a batch from the current values by name.

    Returns:
        The trained values on the CPU, and the loss before the last step, 0 without steps.
    """
    trained = {
        name: tensor.detach().clone().to(server.device).requires_grad_()
        for name, tensor in tensors.items()
    }
    steps, value = optimizer(trained.values(), lr=lr), torch.zeros(())
    for batch in batches:
        steps.zero_grad()
        value = loss(trained, batch)
        value.backward()  # type: ignore[no-untyped-call]
        steps.step()
    return {name: tensor.detach().cpu() for name, tensor in trained.items()}, value.detach().cpu()
