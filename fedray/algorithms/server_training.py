"""Training on the server: of tensors (prompts, generators, a head), and of whole models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedray import core
from fedray.models import Classifier
from fedray.streams import torch_seeded

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


def fit_on_server(
    server: core.Server,
    architecture: str,
    weights: Mapping[str, Tensor],
    samples: core.Samples,
    loss: Callable[[Classifier, core.Batch], Tensor],
    *,
    decay: Callable[[float], float] | None = None,
    **config: Any,
) -> core.Tensors:
    """Train a whole model on images by `core.fit`, the loop of clients.

    Args:
        server: the server.
        architecture: the model's architecture.
        weights: its initial parameters and buffers.
        samples: the images.
        loss: returns the loss of a batch, whose `positions` are those in `samples`.
        decay: as in `core.fit`.
        config: changes of the clients' training configuration.

    Returns:
        The trained parameters and buffers, on the CPU.
    """
    learner = server.learner(architecture, samples, **config)
    seed = server.streams.entropy(f"server layers/{architecture}", round_=server.round)
    with torch_seeded(seed, server.device):
        local = core.LocalContext(learner, learner.load(weights), core.ClientState({}), None)
        trained = core.fit(local, lambda batch: loss(local.model, batch), decay=decay)
    return {name: tensor.cpu() for name, tensor in trained.tensors.items()}
