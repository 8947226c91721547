"""Stacked clients: local training of several clients as one batched model (`stacked: N`).

The weights of up to N clients of one architecture are the rows of one matrix. A client's step
begins and finishes on its architecture's model, from which its row is taken and to which it
returns; in between, all rows are trained together: `torch.vmap` over the method's loss, and the
experiment's optimiser on the stacked parameters. Each client draws the same batches as when trained
separately. Clients with batches of equal size compute them together; clients without such a batch
wait.

Rounding depends on which clients are computed together. `stacks_of` therefore divides the clients
of an exchange by their sorted ids and N alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain, groupby
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.core.algorithm import Algorithm, LocalContext
from fedray.core.client import Batch, Client, Samples
from fedray.core.flat import Flat
from fedray.core.optimizers import ON_THE_CPU, SGD
from fedray.core.payload import Payload
from fedray.core.sums import halves, stack_trees
from fedray.core.training import (
    LocalTraining,
    Trained,
    augmentation_draws,
    augmented,
    batch_indices,
    batch_order,
    batch_sizes,
    check_loss,
    check_scalar,
    only_trainable,
)
from fedray.counts import Tally, counted
from fedray.errors import UserError
from fedray.models import Classifier, is_tied, learnable_parameters
from fedray.trees import ClientState, StateTree, Tensors, is_tree, leaves, map_tensors

CPU = torch.device("cpu")


def stacks_of(clients: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """Divide clients into the largest subtrees of `core.sums` with at most `limit` clients.

    Args:
        clients: sorted ids of all clients of an exchange, or of a subtree at least as large as a
            stack.
        limit: N.
    """
    if len(clients) > limit:
        for half in halves(clients):
            yield from stacks_of(half, limit)
    elif clients:
        yield clients


def refusal(method: type[Algorithm]) -> str:
    """Return the reason why a method's clients cannot be stacked; "" if they can."""
    if method.stacks:
        return ""
    if not issubclass(method, LocalTraining) or (
        method.client_update is not LocalTraining.client_update
    ):
        return "it has its own client step"
    if method.train is not LocalTraining.train:
        return "it has its own training loop"
    return "its loss depends on values (control flow, shapes), or has not been compared"


def train_stacked(
    method: LocalTraining, model: Classifier, rows: Flat, contexts: Sequence[LocalContext]
) -> tuple[list[Trained | FloatingPointError], list[int], int]:
    """Train clients together, in place, as `LocalTraining.train` does.

    Args:
        method: the method.
        model: a model of the clients' architecture, whose tensors are replaced by those of `rows`.
        rows: the clients' weights, a row each.
        contexts: the clients, in descending order of their numbers of images; all of one form.

    Returns:
        The result of each client, or the error if its loss is not finite; the number of images that
        each client's model processed; and the number of trained numbers of one client.
    """
    attention: AbstractContextManager[object] = nullcontext()
    if contexts[0].client.device.type == "cpu":  # the faster CPU kernels do not batch clients
        attention = sdpa_kernel(SDPBackend.MATH)
    with only_trainable(model, contexts[0].trainable), attention, counted() as tally:
        training = _StackedTraining(method, model, rows, contexts)
        training.run(tally)
    return training.results(), training.images, training.parameters


class Stretch(NamedTuple):
    """Consecutive clients [start, stop) that take a step together, on batches of one size."""

    start: int
    stop: int
    size: int


def runs_of_epoch(sizes: Sequence[Sequence[int]], whole: int) -> Iterator[list[Stretch]]:
    """Divide an epoch into steps, and the clients of each step into runs.

    In the first steps, all clients that have whole batches compute them together. In the last step,
    clients compute their last batch, if its size differs: it is smaller, or one image larger.

    Args:
        sizes: the batch sizes of each client, in descending order of their numbers of images.
        whole: the batch size.

    Yields:
        The runs of each step.
    """
    counts = [sum(size == whole for size in client_sizes) for client_sizes in sizes]
    for step in range(max(counts, default=0)):
        takes_part = [count > step for count in counts]
        yield [Stretch(start, stop, whole) for takes, start, stop in stretches(takes_part) if takes]
    tails = [
        sum(client_sizes) - whole * count for client_sizes, count in zip(sizes, counts, strict=True)
    ]
    yield [Stretch(start, stop, tail) for tail, start, stop in stretches(tails) if tail]


def stretches(keys: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each stretch of equal keys as the key, its first position, and the position after."""
    start = 0
    for key, equal in groupby(keys):
        stop = start + len([*equal])
        yield key, start, stop
        start = stop


class _StackedTraining:
    """The local training of clients whose weights are the rows of a matrix.

    Attributes:
        steps: number of steps of each client.
        images: number of images that each client's model has processed.
        parameters: number of trained numbers of one client.
    """

    def __init__(
        self, method: LocalTraining, model: Classifier, rows: Flat, contexts: Sequence[LocalContext]
    ) -> None:
        one, count = contexts[0], len(contexts)
        self.steps, self.images, self.parameters = [0] * count, [0] * count, 0
        self._contexts, self._device = contexts, one.client.device
        self._config = one.client.setting.training
        self._counts_steps = not isinstance(self._config.optimizer, SGD)
        self._samples = Samples.joined([context.client.train for context in contexts])
        self._stored, self._labels = self._samples.tensors(self._device)
        self._views: list[torch.Generator] = []
        if not self._config.augment.is_identity:
            self._views = [augmentation_draws(context.client) for context in contexts]
        self._rows = rows
        learning = learnable_parameters(model)
        if one.trainable is not None:
            learning = learning.intersection(one.trainable)
        self._extra = stack_trees([context.extra for context in contexts]) if one.extra else {}
        self._learning = {n: tensor for n, tensor in rows.items() if n in learning} | self._extra
        is_sent_once = all([context.down is one.down for context in contexts])  # noqa: C419
        memories = [context.state.memory for context in contexts]
        self._fixed: StateTree = {  # layers update running statistics in contiguous rows alone
            "model": {n: tensor.contiguous() for n, tensor in rows.items() if n not in learning},
            "memory": stack_trees(memories) if memories[0] else {},
            "counts": self._class_counts(one.client.setting.num_classes),
            "down": {} if is_sent_once else stack_trees([_tensor_fields(c.down) for c in contexts]),
        }
        self._parts: dict[tuple[int, int], _Part] = {}
        self._means: dict[str, StateTree] = {}  # the optimiser's running means, by name
        self._batches, self._runs = self._draw_batches()
        self._losses: list[tuple[Stretch, Tensor]] = []
        loss = _Loss(method, model, one, self._samples, [*self._learning], self._fixed)
        self._loss = torch.vmap(loss, randomness="error")

    def _class_counts(self, classes: int) -> Tensor:
        """Return n_{i,c} of all clients [clients, C], int64, in one operation."""
        counts = [len(context.client.train) for context in self._contexts]
        first = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)) * classes
        labels = self._labels.reshape(len(first), self._samples.labels_per_image)
        keys = first.to(self._device).unsqueeze(1) + labels
        return keys.flatten().bincount(minlength=len(counts) * classes).view(-1, classes)

    def _draw_batches(self) -> tuple[Sequence[Tensor], list[Stretch]]:
        """Draw each client's batches from its own stream; return the batches of each run, and runs.

        If the optimiser counts steps, all clients of a run have taken equally many steps.
        """
        config, counts = self._config, [len(context.client.train) for context in self._contexts]
        orders = [batch_order(context.client) for context in self._contexts]
        starts = [sum(counts[:number]) for number in range(len(counts))]
        self._starts = torch.tensor(starts, device=self._device).unsqueeze(1)
        sizes = [batch_sizes(count, config) for count in counts]
        runs: list[Stretch] = []
        indices: list[Tensor] = []
        for _ in range(config.epochs):
            batches = [
                iter(batch_indices(count, batches_of, config, order, CPU))
                for count, batches_of, order in zip(counts, sizes, orders, strict=True)
            ]
            for run in self._split_all(runs_of_epoch(sizes, config.batch_size)):
                runs.append(run)
                for client in range(run.start, run.stop):
                    indices.append(next(batches[client]) + starts[client])
                    self.steps[client] += 1
        lengths = [(run.stop - run.start) * run.size for run in runs]
        return torch.split(torch.cat(indices).to(self._device), lengths) if runs else (), runs

    def _split_all(self, steps: Iterable[Sequence[Stretch]]) -> Iterator[Stretch]:
        """Split runs by their clients' numbers of steps so far, if the optimiser counts steps."""
        for run in chain.from_iterable(steps):
            counted_steps = self.steps if self._counts_steps else [0] * len(self.steps)
            for _, start, stop in stretches(counted_steps[run.start : run.stop]):
                yield Stretch(run.start + start, run.start + stop, run.size)

    def run(self, tally: Tally) -> None:
        """Take all steps of all clients."""
        trained = set[str]()
        steps_taken = [0] * len(self.steps)
        for run, batch in zip(self._runs, self._batches, strict=True):
            part, before = self._part(run.start, run.stop), tally.images
            self._backward(run, part, batch.view(-1, run.size))
            if self._config.clip_grad_norm is not None:
                clip_rows([*part.learning.values()], self._config.clip_grad_norm)
            self._step(run, part, steps_taken[run.start])
            trained |= {name for name, tensor in part.learning.items() if tensor.grad is not None}
            for tensor in part.learning.values():
                tensor.grad = None
            for client in range(run.start, run.stop):
                steps_taken[client] += 1
                self.images[client] += tally.images - before
        self.parameters = sum(self._learning[name][0].numel() for name in trained)

    def _step(self, run: Stretch, part: _Part, steps_taken: int) -> None:
        """Take the optimiser's step for a run, with the run's rows of the running means."""
        optimizer, rows = part.optimizer, slice(run.start, run.stop)
        for name, means in self._means.items():
            optimizer.state[part.learning[name]] = {
                key: torch.tensor(float(steps_taken)) if key in ON_THE_CPU else value[rows]
                for key, value in means.items()
            }
        optimizer.step()
        for name, tensor in part.learning.items():
            state = optimizer.state.get(tensor, {}) if name not in self._means else {}
            means = {key: value for key, value in state.items() if isinstance(value, Tensor)}
            if means:  # the first step of this parameter; running means begin at 0
                self._means[name] = full = {
                    key: value if key in ON_THE_CPU else torch.zeros_like(self._learning[name])
                    for key, value in means.items()
                }
                for key in full.keys() - set(ON_THE_CPU):
                    full[key][rows] = means[key]

    def results(self) -> list[Trained | FloatingPointError]:
        """Return the result of each client, or its error."""
        for name, tensor in self._fixed["model"].items():
            self._rows[name].copy_(tensor)
        losses: list[list[tuple[float, int]]] = [[] for _ in self._contexts]
        tensors = [tensor for _, tensor in self._losses]
        values = iter(torch.cat(tensors).tolist() if tensors else ())
        for run, _ in self._losses:
            for client in range(run.start, run.stop):
                losses[client].append((next(values), run.size))
        return [self._result(row, client_losses) for row, client_losses in enumerate(losses)]

    def _result(
        self, row: int, losses: Sequence[tuple[float, int]]
    ) -> Trained | FloatingPointError:
        """Return the result of a client from the loss and the size of each batch."""
        context, epochs = self._contexts[row], self._config.epochs
        steps = len(losses) // epochs
        means = [_mean_loss(losses[n * steps :][:steps]) for n in range(epochs)]
        try:
            check_loss(means[-1], self._config)
        except FloatingPointError as error:
            return error
        for name, tensor in context.extra.items():
            tensor.copy_(self._extra[name][row])
        context.client.train_losses.append(means[-1])
        trained = [vector[row] for vector in self._rows.vectors]
        tensors = Flat(self._rows.layout, trained)
        return Trained({**tensors, **context.extra} if context.extra else tensors, self.steps[row])

    def _part(self, start: int, stop: int) -> _Part:
        """Return the rows of the clients [start, stop) and their optimiser."""
        if (start, stop) not in self._parts:
            learning = {
                name: tensor[start:stop].detach().requires_grad_()
                for name, tensor in self._learning.items()
            }
            fixed = [tensor[start:stop] for _, tensor in leaves(self._fixed)]
            optimizer = self._config.optimizer.make(learning.values(), self._config.lr)
            self._parts[start, stop] = _Part(learning, fixed, optimizer)
        return self._parts[start, stop]

    def _backward(self, run: Stretch, part: _Part, index: Tensor) -> None:
        """Compute the gradients of a run's batches [clients, B]."""
        stored, labels = self._stored[index], self._labels[index]
        if views := self._views[run.start : run.stop]:
            augment, pairs = self._config.augment, zip(stored, views, strict=True)
            stored = torch.stack([augmented(augment, images, random) for images, random in pairs])
        positions = index - self._starts[run.start : run.stop]
        own = *part.learning.values(), *part.fixed
        losses = self._loss(*own, stored, labels, positions)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._losses.append((run, losses.detach()))


def _mean_loss(losses: Sequence[tuple[float, int]]) -> float:
    """Return the mean loss of an epoch's images from (mean loss, images) of its batches."""
    if not losses:
        return 0.0
    weights = [size / losses[0][1] for _, size in losses]
    total = sum(loss * weight for (loss, _), weight in zip(losses, weights, strict=True))
    return total / sum(weights)


class _Part(NamedTuple):
    """The tensors and the optimiser of the clients of a run.

    Attributes:
        learning: the clients' rows of trained tensors, as leaves.
        fixed: the clients' rows of all other tensors, in order.
        optimizer: the optimiser of `learning`.
    """

    learning: Tensors
    fixed: Sequence[Tensor]
    optimizer: torch.optim.Optimizer


class _Loss:
    """The loss of one client's batch as a function of all tensors that differ between clients.

    Args:
        method: the method.
        model: a model of the clients' architecture.
        one: one of the clients.
        samples: the images of all clients.
        learning: names of the trained tensors.
        fixed: the other tensors, as a tree.
    """

    def __init__(
        self,
        method: LocalTraining,
        model: Classifier,
        one: LocalContext,
        samples: Samples,
        learning: Sequence[str],
        fixed: StateTree,
    ) -> None:
        self._objective, self._samples, self._one = _Objective(method, model), samples, one
        self._learning, self._fixed = learning, fixed
        self._client = {name: getattr(one.client, name) for name in SHARED_BY_CLIENTS}

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Return the loss; `tensors` are the trained ones, the others, images, labels, positions.

        They are arguments of their own because `torch.vmap` takes long to look through a tree.
        """
        *own, stored, labels, positions = tensors
        learning = dict(zip(self._learning, own, strict=False))
        others = iter(own[len(learning) :])
        fixed = map_tensors(lambda _: next(others), self._fixed)
        one, down = self._one, self._one.down
        context = replace(
            one,
            client=cast(Client, _Shared("client", **self._client, class_counts=fixed["counts"])),
            model=self._objective.model,
            state=cast(ClientState, _Shared("state", memory=fixed["memory"])),
            down=replace(down, **fixed["down"]) if fixed["down"] else down,
            extra={name: learning[name] for name in one.extra},
        )
        model = {name: v for name, v in learning.items() if name not in one.extra}
        weights = {f"model.{name}": v for name, v in (model | fixed["model"]).items()}
        batch = self._samples.batch(stored, labels, positions)
        result: Tensor = functional_call(
            self._objective, weights, (batch, context), tie_weights=is_tied(self._objective.model)
        )
        check_scalar(result)
        return result


SHARED_BY_CLIENTS = ("architecture", "device", "round", "setting")
"""The attributes of `Client` that are equal for all clients of a stack."""


class _Shared:
    """The attributes that are equal for all clients of a stack.

    Reading another attribute raises a `UserError`, because the loss of the stack cannot use it.
    """

    def __init__(self, name: str, **attributes: Any) -> None:
        self._name = name
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"the loss reads local.{self._name}.{name}, which differs between clients, so "
            "clients cannot be stacked; set stacked=1"
        )


class _Objective(nn.Module):
    """A module of a model and the method's loss, in which `functional_call` replaces tensors."""

    def __init__(self, method: LocalTraining, model: Classifier) -> None:
        super().__init__()
        self.model, self._method = model, method

    def forward(self, batch: Batch, context: LocalContext) -> Tensor:
        """Return the loss of a batch as `LocalTraining.train` does."""
        return self._method.loss(self.model(batch.inputs), batch, context)


def clip_rows(tensors: Sequence[Tensor], bound: float) -> None:
    """Clip the norm of each client's gradient, one row of every tensor, as `clip_grad_norm_`."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    norms = [gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]
    factors = (bound / (torch.stack(norms).norm(dim=0) + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


def _tensor_fields(payload: Payload) -> dict[str, Any]:
    """Return the tensor fields of a payload by name."""
    fields = vars(payload).items()
    return {name: value for name, value in fields if isinstance(value, Tensor) or is_tree(value)}
