"""Local training of a client for E_c epochs, as a template of a client step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fedray.core.algorithm import Algorithm, LocalContext
from fedray.core.client import Batch, Client, TrainingConfig
from fedray.core.optimizers import load_running_means, running_means
from fedray.core.payload import Payload
from fedray.core.state import ClientState, Tensors
from fedray.models import Classifier, ClassifierOutput, is_normalisation


@dataclass(frozen=True)
class Trained:
    """The result of local training.

    Attributes:
        tensors: the model's parameters and buffers and the extra parameters, by name, not copied.
        steps: K, the number of batches in all epochs; `repeat` of `fit` does not count.
        losses: mean loss of each epoch.
    """

    tensors: Mapping[str, Tensor]
    steps: int
    losses: Sequence[float]


class LocalTraining(Algorithm):
    """A method whose clients train their model on one loss; by default, without communication."""

    stacks = True

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the loss of one batch, a scalar, without side effects.

        Args:
            output: the output of the client's model for the batch.
            batch: inputs and labels.
            local: the client, its model, its state and its download.
        """
        return F.cross_entropy(output.logits, batch.labels)

    def finish(self, local: LocalContext, trained: Trained) -> tuple[Payload | None, ClientState]:
        """Return the upload and the client's next state; by default the client keeps its model."""
        return None, ClientState(local.client.save(local.model), local.state.memory)

    def client_update(
        self, client: Client, state: ClientState, down: Any
    ) -> tuple[Payload | None, ClientState]:
        """Run `begin`, `train` and `finish`."""
        local = self.begin(client, state, down)
        return self.finish(local, self.train(local))

    def train(self, local: LocalContext) -> Trained:
        """Train the trainable parameters on `loss` for the local epochs."""
        return fit(local, lambda batch: self.loss(local.model(batch.inputs), batch, local))


def fit(
    local: LocalContext,
    loss: Callable[[Batch], Tensor],
    *,
    repeat: int = 1,
    before_step: Callable[[], None] = lambda: None,
    after_batch: Callable[[], None] = lambda: None,
) -> Trained:
    """Train the context's model in place: E_c epochs on the client's images.

    One optimiser trains the trainable and the extra parameters. Everything else is unchanged,
    running statistics included.

    Args:
        local: the client and its loaded model.
        loss: the loss of one batch.
        repeat: number of steps on every batch.
        before_step: called before every step, after the gradients are computed.
        after_batch: called after the steps on a batch.

    Raises:
        FloatingPointError: if the loss is not finite.
    """
    with only_trainable(local.model, local.trainable), _with_gradients(local.extra):
        optimizer = _optimizer(local)
        epochs = _Epochs(local.client, optimizer)
        with _keep_running_means(local, optimizer):
            for _ in range(local.client.setting.training.epochs):
                epochs.run(loss, repeat, before_step, after_batch)
    losses = epochs.losses()
    local.client.train_losses.append(losses[-1])
    tensors: Tensors = {**local.client.weights(local.model), **local.extra}
    return Trained(tensors, epochs.steps, losses)


class _Epochs:
    """The training loop of a client: its batches in this round, and the steps on each batch."""

    def __init__(self, client: Client, optimizer: torch.optim.Optimizer) -> None:
        self.config = client.setting.training
        self.steps = 0
        self._totals: list[tuple[Tensor, int]] = []
        self._optimizer = optimizer
        self._learning = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = client.device
        self._samples = client.train
        self._stored, self._labels = client.train.tensors(client.device)
        self._order, self._views = batch_order(client), augmentation_draws(client)
        self._autocast: AbstractContextManager[object] = nullcontext()
        if self.config.precision == "bfloat16":
            self._autocast = torch.autocast(client.device.type, torch.bfloat16)

    def run(
        self,
        loss: Callable[[Batch], Tensor],
        repeat: int,
        before_step: Callable[[], None],
        after_batch: Callable[[], None],
    ) -> None:
        """Train one epoch."""
        total, steps = torch.zeros((), device=self._device), 0
        for batch in self._batches():
            for _ in range(repeat):
                self._optimizer.zero_grad()
                with self._autocast:
                    value = loss(batch)
                value.backward()  # type: ignore[no-untyped-call]
                before_step()
                if self.config.clip_grad_norm is not None:
                    clip_grad_norm_(self._learning, self.config.clip_grad_norm)
                self._optimizer.step()
            after_batch()
            total += value.detach()
            steps += 1
        self.steps += steps
        self._totals.append((total, steps))

    def losses(self) -> list[float]:
        """Return the mean loss of every epoch.

        Raises:
            FloatingPointError: if the last one is not finite.
        """
        means = [float(total) / max(steps, 1) for total, steps in self._totals]
        check_loss(means[-1], self.config)
        return means

    def _batches(self) -> Iterator[Batch]:
        for index in batch_indices(len(self._labels), self.config, self._order, self._device):
            stored = self._stored[index]
            if self._views is not None:
                stored = self.config.augment(stored, self._views)
            yield self._samples.batch(stored, self._labels[index])


def check_loss(loss: float, config: TrainingConfig) -> None:
    """Raise a FloatingPointError if the mean loss of an epoch is not finite."""
    if not np.isfinite(loss):
        raise FloatingPointError(
            f"the training loss became {loss}; lower lr (now {config.lr:g}) "
            "or the weight of the method's own loss term"
        )


def batch_order(client: Client) -> torch.Generator:
    """Return the random stream that orders the client's images in this round."""
    return client.setting.streams.torch("batches", round_=client.round, client=client.id)


def augmentation_draws(client: Client) -> torch.Generator | None:
    """Return the random stream of the client's augmentation in this round; None without one."""
    if client.setting.training.augment.is_identity:
        return None
    return client.setting.streams.torch("augment", round_=client.round, client=client.id)


def batch_indices(
    count: int, config: TrainingConfig, random: torch.Generator, device: torch.device
) -> Sequence[Tensor]:
    """Return the indices of one epoch's batches, int64."""
    order = torch.randperm(count, generator=random) if config.shuffle else torch.arange(count)
    order, sizes = order.to(device), batch_sizes(count, config)
    if len(sizes) == 1:
        return (order[: sizes[0]],)
    return torch.split(order[: sum(sizes)], sizes)


def batch_sizes(count: int, config: TrainingConfig) -> list[int]:
    """Return the sizes of one epoch's batches."""
    whole, remainder = divmod(count, config.batch_size)
    sizes = [config.batch_size] * whole
    if remainder == 1 and sizes and not config.drop_last:
        sizes[-1] += 1  # batch normalisation cannot train on one image
    elif remainder and not config.drop_last:
        sizes.append(remainder)
    return sizes


def _optimizer(local: LocalContext) -> torch.optim.Optimizer:
    config, skeleton = local.client.setting.training, local.client.skeleton
    if not local.extra:
        return skeleton.optimizer(config)
    return config.optimizer.make([*skeleton.parameters, *local.extra.values()], config.lr)


@contextmanager
def _keep_running_means(local: LocalContext, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """With `optimizer.keep`, load the client's running means, and keep the new ones afterwards."""
    if not local.client.setting.training.optimizer.params.keep:
        yield
        return
    model = local.client.skeleton.model
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *local.extra.items()]
    names = {tensor: name for name, tensor in named}
    load_running_means(optimizer, names, local.client.optimizer_state)
    yield
    local.client.optimizer_state.update(running_means(optimizer, names))


@contextmanager
def _with_gradients(extra: Mapping[str, Tensor]) -> Iterator[None]:
    for tensor in extra.values():
        tensor.requires_grad_()
    try:
        yield
    finally:
        for tensor in extra.values():
            tensor.requires_grad_(False)
            tensor.grad = None


@contextmanager
def only_trainable(model: Classifier, trainable: Collection[str] | None) -> Iterator[None]:
    """Put a model into training mode, with all parameters frozen except those in `trainable`.

    Normalisation layers without a trainable parameter stay in evaluation mode.
    """
    if not model.training:
        model.train()
    if trainable is None:
        yield
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)
    for module in model.modules():
        if is_normalisation(module) and not any(p.requires_grad for p in module.parameters()):
            module.eval()
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        model.train()


def with_extra(local: LocalContext, extra: Mapping[str, Tensor]) -> LocalContext:
    """Return the context with copies of the extra parameters on the client's device."""
    device = local.client.device
    copies = {name: tensor.to(device, copy=True) for name, tensor in extra.items()}
    return replace(local, extra={**local.extra, **copies})
