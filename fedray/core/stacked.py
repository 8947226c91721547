"""Stacked clients: local training of several clients as one batched model (`stacked: N`).

The weights of up to N clients of one architecture are the rows of one matrix. All rows are trained
together: `torch.vmap` over the method's loss, and the experiment's optimiser on the stacked
parameters. Each client draws the same batches as when trained separately. Clients with batches of
equal size compute them together; clients without such a batch wait.

Rounding depends on which clients are computed together. `sums.subtrees` therefore divides
the clients of an exchange by their sorted ids and N alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import accumulate, groupby, product
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.base.counts import Tallied, Tally, counted
from fedray.base.errors import UserError
from fedray.base.flat import Flat
from fedray.base.trees import leaves, map_tensors, moved_to
from fedray.core.algorithm import Algorithm, LocalContext
from fedray.core.client import CPU, Batch, diverged
from fedray.core.optimizers import ON_THE_CPU, SGD
from fedray.core.sums import stack_trees
from fedray.core.training import (
    LocalTraining,
    Trained,
    augmented,
    batch_sizes,
    batches_of,
    only_trainable,
)
from fedray.models import Classifier, is_tied, learnable_parameters


def refusal(method: type[Algorithm]) -> str:
    """Return the reason why a method's clients cannot be stacked; "" if they can."""
    if not issubclass(method, LocalTraining) or (
        method.client_update is not LocalTraining.client_update
    ):
        return "it has its own client step"
    if (method.train, method.observe) != (LocalTraining.train, LocalTraining.observe):
        return "it has its own training loop"
    if method.stacks:
        return ""
    return "its loss depends on values (control flow, shapes), or has not been compared"


def train_stacked(
    method: LocalTraining, model: Classifier, rows: Flat, contexts: Sequence[LocalContext]
) -> list[tuple[Trained | FloatingPointError, Tallied]]:
    """Train clients together, in place, as `LocalTraining.train` does.

    Args:
        method: the method.
        model: a model of the clients' architecture, whose tensors are replaced by those of `rows`.
        rows: the clients' weights, a row each.
        contexts: the clients, in descending order of their numbers of images; all of one form.

    Returns:
        The result of each client, or the error if its loss is not finite; and its work.
    """
    attention: AbstractContextManager[object] = nullcontext()
    if contexts[0].client.device.type == "cpu":  # the faster CPU kernels do not batch clients
        attention = sdpa_kernel(SDPBackend.MATH)
    with only_trainable(model, contexts[0].trainable), attention, counted() as tally:
        stack = _Stack(method, model, rows, contexts)
        for clients, epoch in stack.steps():
            stack.take(clients, epoch, tally)
    return stack.results()


def shared_steps(
    sizes: Sequence[Sequence[int]], whole: int, epochs: int, *, counts_steps: bool
) -> Iterator[tuple[slice, int]]:
    """Yield the clients that take each step together, and its epoch.

    In the first steps of an epoch, all clients that have whole batches compute them together. In
    the last step, clients compute their last batch, if its size differs: it is smaller, or one
    image larger.

    Args:
        sizes: the sizes of each client's batches in an epoch, in descending order of their sums.
        whole: the batch size.
        epochs: the number of epochs.
        counts_steps: whether clients must have taken equally many steps to take one together.
    """
    counts = [batches.count(whole) for batches in sizes]
    rest = [sum(batches) - whole * count for batches, count in zip(sizes, counts, strict=True)]
    batches = [[whole * (count > step) for count in counts] for step in range(max(counts))]
    taken = [0] * len(sizes)
    for epoch, batch in product(range(epochs), [*batches, rest]):
        stop = 0
        for (size, _), clients in groupby([*zip(batch, taken, strict=True)]):
            start, stop = stop, stop + len([*clients])
            if size:
                yield slice(start, stop), epoch
        if counts_steps:
            taken = [done + (size > 0) for done, size in zip(taken, batch, strict=True)]


class _Stack:
    """Clients in training, whose weights are the rows of a matrix.

    What differs between clients is one tree of stacked tensors, of which the first are trained.
    """

    def __init__(
        self, method: LocalTraining, model: Classifier, rows: Flat, contexts: Sequence[LocalContext]
    ) -> None:
        one, self._rows, self._contexts = contexts[0], rows, contexts
        self._config, self._device = one.client.setting.training, one.client.device
        index = np.concatenate([context.client.train.index for context in contexts])
        self._samples = replace(one.client.train, index=index)
        self._stored, self._labels = self._samples.tensors(self._device)
        self._counts = [context.client.train.index.size for context in contexts]
        self._starts = torch.tensor([0, *accumulate(self._counts)], device=self._device)
        self._class_counts = self._count_classes(one.client.setting.num_classes)
        self._views: list[torch.Generator] = []
        learning = learnable_parameters(model)
        if one.trainable is not None:
            learning = learning.intersection(one.trainable)
        sent = [context.down for context in contexts if context.down is not one.down]
        names = one.down.fields.tensors if sent else ()  # of what each client is sent for itself
        self._tree: dict[str, Any] = {
            "learning": {n: tensor for n, tensor in rows.items() if n in learning},
            "extra": stack_trees([c.extra for c in contexts]),
            "fixed": {n: tensor for n, tensor in rows.items() if n not in learning},
            "memory": stack_trees([c.state.memory for c in contexts]),
            "down": stack_trees([{n: getattr(c.down, n) for n in names} for c in contexts]),
        }
        self._learning = [*self._tree["learning"].values(), *self._tree["extra"].values()]
        others = [tensor for _, tensor in leaves(self._tree)][len(self._learning) :]
        # layers update running statistics in contiguous rows alone
        self._others = [tensor.contiguous() for tensor in others]
        self._objective = _Objective(method, model)
        self._equal = {name: getattr(one.client, name) for name in SHARED_BY_CLIENTS}
        self._losses = torch.vmap(self._loss, randomness="error")
        self._means: dict[tuple[int, str], Tensor] = {}  # the optimiser's running means
        self._last: list[tuple[slice, int, Tensor]] = []  # losses of the last epoch
        self._work, self._parameters = np.zeros((len(contexts), 2), np.int64), 0

    def _count_classes(self, classes: int) -> Tensor:
        """Return n_{i,c} of all clients [clients, C], int64, in one operation."""
        count = len(self._counts)
        first = (torch.arange(count) * classes).repeat_interleave(torch.tensor(self._counts))
        labels = self._labels.flatten(1) if self._labels.dim() > 1 else self._labels.unsqueeze(1)
        keys = first.to(self._device).unsqueeze(1) + labels
        return keys.flatten().bincount(minlength=count * classes).view(-1, classes)

    def steps(self) -> Iterator[tuple[slice, int]]:
        """Yield the clients that take each step together, and its epoch."""
        config = self._config
        sizes = [batch_sizes(count, config) for count in self._counts]
        counts_steps = not isinstance(config.optimizer, SGD)
        clients = [context.client for context in self._contexts]
        self._batches = [
            iter([index for order in client.orders() for index in batches_of(order, batches)])
            for client, batches in zip(clients, sizes, strict=True)
        ]
        if not config.augment.is_identity:
            self._views = [client.random("augment") for client in clients]
        return shared_steps(sizes, config.batch_size, config.epochs, counts_steps=counts_steps)

    def take(self, clients: slice, epoch: int, tally: Tally) -> None:
        """Take a step of some clients in an epoch, and note its work."""
        config, (stored, integers) = self._config, self._batch(clients)
        learning = [tensor[clients].detach().requires_grad_() for tensor in self._learning]
        others = [tensor[clients] for tensor in self._others]
        losses = self._losses(*learning, *others, stored, integers)
        ones = torch.ones(losses.shape[:1], device=self._device)
        losses.backward(ones)  # type: ignore[no-untyped-call]
        if epoch == config.epochs - 1:
            self._last.append((clients, stored.shape[1], losses.detach()))
        if config.clip_grad_norm is not None:
            clip_rows(learning, config.clip_grad_norm)
        optimizer = config.optimizer.make(learning, config.lr)
        for (n, name), means in self._means.items():
            own = means[clients.start] if name in ON_THE_CPU else means[clients]
            optimizer.state[learning[n]][name] = own
        optimizer.step()
        for n, tensor in enumerate(learning):
            for name, own in optimizer.state.get(tensor, {}).items():
                if (n, name) not in self._means:  # means of all clients, which begin at zero
                    self._means[n, name] = own.new_zeros(len(self._work), *own.shape[1:])
                self._means[n, name][clients] = own
            tensor.grad = None
        _, images, numbers = tally.take()
        self._work[clients] += 1, images
        self._parameters = max(self._parameters, numbers // losses.shape[0])

    def _batch(self, clients: slice) -> tuple[Tensor, Tensor]:
        """Return the stored images of the clients' next batches [clients, B, ...], and integers.

        Labels, positions and class counts are one tensor, because `torch.vmap` takes long for each.
        """
        drawn = [*map(next, self._batches[clients])]
        positions = torch.stack(drawn)
        index = positions + self._starts[clients].unsqueeze(1)
        stored, labels = self._stored[index], self._labels[index]
        if views := self._views[clients]:
            augment, pairs = self._config.augment, zip(stored, views, strict=True)
            stored = torch.stack([augmented(augment, images, random) for images, random in pairs])
        counts = self._class_counts[clients]
        return stored, torch.cat([labels.flatten(1), positions, counts], 1)

    def _loss(self, *tensors: Tensor) -> Tensor:
        """Return the loss of one client's batch.

        The leaves of the tree, images, and integers (`_batch`) are arguments of their own, because
        `torch.vmap` takes long to look through a tree.
        """
        *own, stored, integers = tensors
        remaining, one = iter(own), self._contexts[0]
        values = map_tensors(lambda _: next(remaining), self._tree)
        counts = integers[-one.client.setting.num_classes :]
        last = integers.shape[0] - counts.shape[0]
        first = last - stored.shape[0]
        batch = self._samples.batch(stored, integers[:first], integers[first:last])
        client: Any = _Shared(place="local.client", **self._equal, class_counts=counts)
        state: Any = _Shared(place="local.state", memory=values["memory"])
        down = one.down and one.down.replaced(**values["down"])
        model = self._objective.model
        local = LocalContext(client, model, state, down, values["extra"], one.trainable)
        named = {**values["learning"], **values["fixed"]}
        weights = {f"model.{name}": tensor for name, tensor in named.items()}
        loss: Tensor = functional_call(
            self._objective, weights, (batch, local), tie_weights=is_tied(model)
        )
        return loss

    def results(self) -> list[tuple[Trained | FloatingPointError, Tallied]]:
        """Return the result of each client, or its error, and its work."""
        for tensor, name in zip(self._others, self._tree["fixed"], strict=False):
            self._rows[name].copy_(tensor)
        totals, images = np.zeros((2, len(self._contexts)))
        moved = moved_to([losses for *_, losses in self._last], CPU)
        for (clients, size, _), losses in zip(self._last, moved, strict=True):
            totals[clients] += losses.double().numpy() * size
            images[clients] += size
        for name, rows in self._tree["extra"].items():
            for context, own in zip(self._contexts, rows, strict=True):
                context.extra[name].copy_(own)
        means = (totals / images.clip(1)).tolist()
        for context, loss in zip(self._contexts, means, strict=True):
            context.client.train_losses.append(loss)
        facts = zip(self._contexts, means, self._work.tolist(), self._rows.rows(), strict=True)
        return [
            (
                Trained({**own, **context.extra} if context.extra else own, steps)
                if math.isfinite(loss)
                else diverged(loss, self._config),
                Tallied(steps, read, self._parameters),
            )
            for context, loss, (steps, read), own in facts
        ]


SHARED_BY_CLIENTS = ("architecture", "device", "round", "setting")
"""The attributes of `Client` that are equal for all clients of a stack."""


class _Shared(SimpleNamespace):
    """The attributes that are equal for all clients of a stack; others cannot be read."""

    place: str

    def __getattr__(self, name: str) -> NoReturn:
        raise UserError(
            f"the loss reads {self.place}.{name}, which differs between clients, so clients cannot "
            "be stacked; set stacked=1"
        )


class _Objective(nn.Module):
    """A module of a model and the method's loss, in which `functional_call` replaces tensors."""

    def __init__(self, method: LocalTraining, model: Classifier) -> None:
        super().__init__()
        self.model, self._method = model, method

    def forward(self, batch: Batch, local: LocalContext) -> Tensor:
        """Return the loss of a batch as `LocalTraining.train` does."""
        return self._method.loss(self.model(batch.inputs), batch, local)


def clip_rows(tensors: Sequence[Tensor], bound: float) -> None:
    """Clip the norm of each client's gradient, one row of every tensor, as `clip_grad_norm_`."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    norms = [gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]
    factors = (bound / (torch.stack(norms).norm(dim=0) + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
