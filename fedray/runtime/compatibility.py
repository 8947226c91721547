"""Checks that an experiment's method, keys and data fit each other.

`fedray.config` checks each key by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedray.base.errors import UserError
from fedray.config import Experiment
from fedray.core import SGD, Algorithm, algorithms
from fedray.core.stacked import refusal
from fedray.data import FederatedData, ImageSet
from fedray.evaluation.metrics import check_domains
from fedray.models import assign_architectures, check_pretrained, is_dense
from fedray.runtime.privacy import check_privacy


def check_compatible(experiment: Experiment) -> None:
    """Raise a UserError if the method does not support what the experiment's keys ask for."""
    method, keys = algorithms.get(experiment.algorithm.name), experiment.model
    for refused in (_wrong_method, _wrong_models):
        for sentence in refused(experiment, method):
            raise UserError(sentence)
    check_privacy(experiment, method)
    if keys.pretrained is not None and not method.requires.prompts:
        check_pretrained(keys.pretrained, assign_architectures(keys.group, experiment.data.clients))


def _wrong_method(e: Experiment, method: type[Algorithm]) -> Iterator[str]:
    """Yield what the method cannot do."""
    if e.finetune_epochs > 0 and not method.requires.head:
        yield (
            f"finetune_epochs={e.finetune_epochs} trains heads, but {method.name}'s "
            "models have none; set finetune_epochs=0"
        )
    if e.data.novel and not method.requires.prompts:
        yield (
            f"data.novel=true tests classes that no client trains on, but {method.name}'s models "
            "only predict trained classes; set data.novel=false, or choose a prompt method"
        )
    if method.requires.public and e.data.public.name == "none":
        yield (
            f"{method.name} needs public images, but data.public=none; set data.public=share or "
            "data.public=source"
        )
    assumed = f"{method.name} treats an update as a sum of gradients"
    if method.requires.sgd and not isinstance(e.optimizer.build(), SGD):
        yield f"{assumed}, but optimizer={e.optimizer.name} scales them; set optimizer=sgd"
    if method.requires.sgd and e.clip_grad_norm is not None:
        yield (
            f"{assumed}, but clip_grad_norm={e.clip_grad_norm:g} scales them; remove clip_grad_norm"
        )
    if e.stacked == 1:
        return
    if reason := refusal(method):
        yield f"stacked={e.stacked}: {method.name} cannot be stacked: {reason}; set stacked=1"
    if e.precision != "float32":
        yield f"precision={e.precision} cannot be stacked; set stacked=1 or precision=float32"


def _wrong_models(e: Experiment, method: type[Algorithm]) -> Iterator[str]:
    """Yield why the models of `model.group` do not fit, if they predict every pixel."""
    if not is_dense(e.model.group):
        return
    if not method.dense:
        dense = " or ".join(entry.name for entry in algorithms.entries() if entry.dense)
        yield (
            f"model.group={e.model.group} predicts every pixel, but algorithm={method.name} is "
            f"defined for one label per image; choose algorithm={dense}, or another model.group"
        )
    if e.data.augment.name != "none":
        yield (
            f"data.augment={e.data.augment.name} transforms images but not their masks, the "
            f"labels of model.group={e.model.group}; set data.augment=none"
        )


def check_data(experiment: Experiment, data: FederatedData) -> None:
    """Raise a UserError if the clients' images do not suffice for the method and the keys."""
    if data.images.domains is not None:
        check_domains(data.images.domains.names)
    method = algorithms.get(experiment.algorithm.name)
    for refused in (_too_few, _no_validation):
        for sentence in refused(experiment, method, data):
            raise UserError(sentence)


def check_masks(experiment: Experiment, images: ImageSet) -> None:
    """Check that images have masks if the models predict every pixel."""
    method, group = algorithms.get(experiment.algorithm.name), experiment.model.group
    if images.masks is None and not method.requires.prompts and is_dense(group):
        raise UserError(
            f"model.group={group} predicts every pixel, but "
            f"data.source={experiment.data.source.name} has no masks; set data.source to shapes or "
            "mask_folder, or choose a model.group that classifies whole images"
        )


def _too_few(e: Experiment, method: type[Algorithm], data: FederatedData) -> Iterator[str]:
    """Yield what there are too few classes or images for."""
    classes, k = len(data.class_names), e.evaluation.top_k
    if classes < 2:
        yield (
            f"data.source={e.data.source.name} has one class, {', '.join(data.class_names)}; a "
            "classifier needs at least two"
        )
    if k is not None and k >= classes:
        yield (
            f"evaluation.top_k={k} with {classes} classes counts every prediction as correct; "
            f"lower it to {classes - 1} or less, or remove it"
        )
    smallest = min(len(indices) for _, phase in data.phases for indices in phase.train)
    if e.drop_last and smallest < e.batch_size:
        yield (
            f"drop_last=true leaves a client with {smallest} training images no batch of "
            f"batch_size={e.batch_size}; lower batch_size to {smallest} or set drop_last=false"
        )


def _no_validation(e: Experiment, method: type[Algorithm], data: FederatedData) -> Iterator[str]:
    """Yield where validation images are missing."""
    needs = method.requires.validation
    if needs and data.validation is None:
        yield (
            f"{method.name}'s clients need validation images, but data.partition="
            f"{e.data.partition.name} gives them none; set data.validation_fraction, for "
            "example 0.2, or data.partition=dominant_class"
        )
    phases = [phase.validation for _, phase in data.phases]
    parts = (part for validation in phases for part in enumerate(validation or ()))
    for client in (client for client, indices in parts if needs and not len(indices)):
        yield (
            f"client {client} has no validation image, and {method.name}'s clients each need one; "
            "raise data.validation_fraction, or lower data.clients"
        )
