"""Local training of a client for E_c epochs, as a template of a client step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fedray.base.errors import UserError
from fedray.base.trees import ClientState
from fedray.core.algorithm import Algorithm, LocalContext, StepResult
from fedray.core.client import Batch, Client, TrainingConfig, set_lr
from fedray.data.augment import Augmentation
from fedray.models import Classifier, ClassifierOutput, is_normalisation, modules_of


@dataclass(frozen=True)
class Trained:
    """The result of local training.

    Attributes:
        tensors: the model's parameters and buffers and the extra parameters, by name, not copied.
        steps: K, the number of batches in all epochs; `repeat` of `fit` does not count.
    """

    tensors: Mapping[str, Tensor]
    steps: int


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

    def observe(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> None:
        """Note in `local.notes` what `finish` needs from the training, once per batch after `loss`.

        `output` is detached. Clients of a method that overrides it cannot be stacked.
        """

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        """Return the upload and the client's next state; by default the client keeps its model."""
        return None, ClientState(local.client.save(local.model), local.state.memory)

    def client_update(self, client: Client, state: ClientState, down: Any) -> StepResult:
        """Run `begin`, `train` and `finish`."""
        local = self.begin(client, state, down)
        return self.finish(local, self.train(local))

    def train(self, local: LocalContext) -> Trained:
        """Train the trainable parameters on `loss` for the local epochs."""
        return fit(local, self.batch_loss(local))

    @final
    def batch_loss(self, local: LocalContext) -> Callable[[Batch], Tensor]:
        """Return the function for `fit` that computes the loss of a batch and calls `observe`."""
        observes = type(self).observe is not LocalTraining.observe

        def loss(batch: Batch) -> Tensor:
            output = local.model(batch.inputs)
            value = self.loss(output, batch, local)
            if observes:
                self.observe(output.detached(), batch, local)
            return value

        return loss


def fit(
    local: LocalContext,
    loss: Callable[[Batch], Tensor],
    *,
    repeat: int = 1,
    before_step: Callable[[], None] | None = None,
    after_batch: Callable[[], None] | None = None,
    decay: Callable[[float], float] | None = None,
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
        decay: returns the learning rate of a batch as a multiple of `lr`, from the share of batches
            before it, 0 to 1; None: `lr` for all.

    Raises:
        FloatingPointError: if the loss is not finite.
    """
    client, config = local.client, local.client.setting.training
    if config.precision == "bfloat16":
        loss = torch.autocast(client.device.type, torch.bfloat16)(loss)
    optimizer = client.skeleton.optimizer(config, [*local.extra.values()])
    sizes, losses = batch_sizes(client.train.index.size, config), list[Tensor]()
    batches = config.epochs * len(sizes)
    with only_trainable(local.model, local.trainable, local.extra.values()):
        for step, batch in enumerate(_batches(client, sizes, repeat)):
            if decay is not None:
                set_lr(optimizer, config.lr * decay(step // repeat / batches))
            optimizer.zero_grad()
            value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            if before_step is not None:
                before_step()
            if config.clip_grad_norm is not None:
                trained = [p for group in optimizer.param_groups for p in group["params"]]
                clip_grad_norm_(trained, config.clip_grad_norm)
            optimizer.step()
            losses.append(value.detach())
            if after_batch is not None and (step + 1) % repeat == 0:
                after_batch()
    losses = losses[repeat - 1 :: repeat]  # of the last step on every batch
    last = losses[-len(sizes) :] if sizes else []  # of the last epoch
    client.note_losses(last, sizes)
    tensors = client.weights(local.model)
    return Trained({**tensors, **local.extra} if local.extra else tensors, len(losses))


def _batches(client: Client, sizes: Sequence[int], repeat: int) -> Iterator[Batch]:
    """Yield the client's batches in this round, those of all epochs, each `repeat` times."""
    config, samples = client.setting.training, client.train
    stored, labels = client.tensors(samples)
    views = None if config.augment.is_identity else client.random("augment")
    for order in client.orders():
        for index in batches_of(order, sizes):
            images = stored[index]
            if views is not None:
                images = augmented(config.augment, images, views)
            yield from [samples.batch(images, labels[index], index)] * repeat


def augmented(augment: Augmentation, images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a batch of augmented images, uint8 [B, channels, H, W].

    Raises:
        UserError: if the augmentation returns another type or shape; floats from 0 to 1, for
            example, would be other pixels than those of the tests.
    """
    views = augment(images, generator)
    found = (views.dtype, views.shape) if isinstance(views, Tensor) else (type(views).__name__, ())
    if found != (images.dtype, images.shape):
        raise UserError(
            f"data.augment={augment.name} returns {found[0]} {list(found[1])}, expected "
            f"{images.dtype} {list(images.shape)} with values from 0 to 255"
        )
    return views


def batches_of(order: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Return the indices of an epoch's batches of the given sizes from its order of images."""
    ends = accumulate(sizes)
    return [order[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def batch_sizes(count: int, config: TrainingConfig) -> list[int]:
    """Return the sizes of one epoch's batches."""
    whole, rest = count // config.batch_size, count % config.batch_size
    sizes = [config.batch_size] * whole
    if rest == 1 and sizes and not config.drop_last:
        sizes[-1] += 1  # batch normalisation cannot train on one image
    elif rest and not config.drop_last:
        sizes += [rest]
    return sizes


@contextmanager
def only_trainable(
    model: Classifier, trainable: Collection[str] | None, extra: Collection[Tensor] = ()
) -> Iterator[None]:
    """Put a model into training mode; only its parameters in `trainable`, and `extra`, learn.

    Parameters that the model itself freezes stay frozen. Normalisation layers without a trainable
    parameter stay in evaluation mode.
    """
    modules, frozen = modules_of(model)
    if not (model.training and all([module.training for module in modules])):  # noqa: C419
        model.train()  # takes longer than to look
    if trainable is None and not frozen and not extra:
        yield
        return
    parameters = dict(model.named_parameters())
    names = parameters.keys() - frozen
    learning = names if trainable is None else names.intersection(trainable)
    if trainable and not learning:
        raise UserError(
            "the network freezes every layer that the method trains here; leave some of them "
            "unfrozen, set model.projector, or choose a method that trains the head, too"
        )
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in learning)
    for tensor in extra:
        tensor.requires_grad_()
    for module in filter(is_normalisation, model.modules()):
        learns = [parameter.requires_grad for parameter in module.parameters()]
        if not any(learns) and (learns or trainable is not None):
            module.eval()
    try:
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name not in frozen)
        for tensor in extra:
            tensor.requires_grad_(False)
            tensor.grad = None
        model.train()


def with_extra(local: LocalContext, extra: Mapping[str, Tensor]) -> LocalContext:
    """Return the context with copies of the extra parameters on the client's device."""
    device = local.client.device
    copies = {name: tensor.to(device, copy=True) for name, tensor in extra.items()}
    return replace(local, extra={**local.extra, **copies})
