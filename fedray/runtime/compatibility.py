"""Checks that an experiment's method, keys and data fit each other.

`fedray.config` checks each key by itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from fedray.config import Experiment
from fedray.core import SGD, Algorithm, AuxiliaryMethod, Schedule, algorithms
from fedray.core.stacked import refusal
from fedray.data import FederatedData, ImageSet
from fedray.data.inspect import check_sizes
from fedray.data.partitions import more_per_client
from fedray.errors import UserError
from fedray.evaluation.metrics import check_domains
from fedray.models import (
    Pixels,
    assign_architectures,
    check_pretrained,
    is_dense,
    skeleton,
)
from fedray.runtime.privacy import check_privacy


def check_compatible(experiment: Experiment) -> None:
    """Raise a UserError if the method does not support what the experiment's keys ask for."""
    keys, method = experiment.data, algorithms.get(experiment.algorithm.name)
    if experiment.finetune_epochs > 0 and not method.requires.head:
        raise UserError(
            f"finetune_epochs={experiment.finetune_epochs} trains heads, but {method.name}'s "
            "models have none; set finetune_epochs=0"
        )
    if keys.novel and not method.requires.prompts:
        raise UserError(
            f"data.novel=true tests classes that no client trains on, but {method.name}'s models "
            "only predict trained classes; set data.novel=false, or choose a prompt method"
        )
    if method.requires.public and keys.public.name == "none":
        raise UserError(
            f"{method.name} needs public images, but data.public=none; set data.public=share, a "
            "share of the training images, or data.public=source, another source"
        )
    _check_models(experiment, method)
    plain = not type(keys.source.params).model_fields
    if keys.root is not None and keys.image_size is None and plain:
        _check_sizes_once(Path(keys.root), keys.source.name)
    _check_schedule(experiment)
    if method.requires.sgd:
        _check_sgd(experiment, method)
    check_privacy(experiment, method)
    if experiment.stacked > 1:
        _check_stacked(experiment, method)


_check_sizes_once = cache(check_sizes)


def _check_schedule(experiment: Experiment) -> None:
    schedule: Schedule = experiment.lr_schedule.build()
    warmup = schedule.params.warmup_rounds
    if warmup >= experiment.rounds:
        raise UserError(
            f"lr_schedule.warmup_rounds={warmup} leaves no round at lr={experiment.lr:g}; lower "
            f"lr_schedule.warmup_rounds or raise rounds={experiment.rounds}"
        )
    final = getattr(schedule.params, "final_lr", 0.0)
    if final > experiment.lr:
        raise UserError(
            f"lr_schedule.final_lr={final:g} is above lr={experiment.lr:g}, the initial rate; "
            "lower lr_schedule.final_lr or raise lr"
        )


def _check_sgd(experiment: Experiment, method: type[Algorithm]) -> None:
    """Check that an update is a sum of gradients, which the method assumes."""
    optimizer = experiment.optimizer.build()
    if not isinstance(optimizer, SGD):
        raise UserError(
            f"{method.name} treats an update as a sum of gradients, which does not hold with "
            f"optimizer={optimizer.name}; set optimizer=sgd"
        )
    if experiment.clip_grad_norm is not None:
        raise UserError(
            f"{method.name} treats an update as a sum of gradients, but clip_grad_norm="
            f"{experiment.clip_grad_norm:g} scales gradients down; remove clip_grad_norm"
        )


def _check_stacked(experiment: Experiment, method: type[Algorithm]) -> None:
    """Check that stacked clients get the same numbers as clients trained one by one."""
    stacked, reason = f"stacked={experiment.stacked}", refusal(method)
    if reason:
        raise UserError(f"{stacked}: {method.name} cannot be stacked: {reason}; set stacked=1")
    precisions = {"precision": experiment.precision}
    if method.requires.prompts:
        precisions["model.clip_precision"] = experiment.model.clip_precision
    for key, precision in precisions.items():
        if precision != "float32":
            raise UserError(
                f"{stacked} supports float32 only, but {key}={precision}; set stacked=1 or "
                f"{key}=float32"
            )


def _check_models(experiment: Experiment, method: type[Algorithm]) -> None:
    models = assign_architectures(experiment.model.group, experiment.data.clients)
    if is_dense(experiment.model.group):
        _check_dense(experiment, method)
    pretrained = experiment.model.pretrained
    if pretrained is not None and not method.requires.prompts:
        check_pretrained(pretrained, models)


def _check_dense(experiment: Experiment, method: type[Algorithm]) -> None:
    group, augmentation = experiment.model.group, experiment.data.augment.name
    if not method.dense:
        dense = " or ".join(entry.name for entry in algorithms.entries() if entry.dense)
        raise UserError(
            f"model.group={group} predicts every pixel, but "
            f"algorithm={method.name} is defined for one label per image; choose "
            f"algorithm={dense}, or a model.group that classifies whole images"
        )
    if augmentation != "none":
        raise UserError(
            f"data.augment={augmentation} transforms images but not their masks, the labels of "
            f"model.group={group}; set data.augment=none"
        )


def check_masks(experiment: Experiment, images: ImageSet) -> None:
    """Check that images have masks if the models predict every pixel."""
    method, group = algorithms.get(experiment.algorithm.name), experiment.model.group
    if images.masks is None and not method.requires.prompts and is_dense(group):
        raise UserError(
            f"model.group={group} predicts every pixel, but "
            f"data.source={experiment.data.source.name} has no masks; set data.source to shapes or "
            "mask_folder, or choose a model.group that classifies whole images"
        )


def check_data(experiment: Experiment, data: FederatedData) -> None:
    """Check that the clients' images suffice for the method and the keys."""
    if data.images.domains is not None:
        check_domains(data.images.domains.names)
    classes = len(data.class_names)
    if classes < 2:
        raise UserError(
            f"data.source={experiment.data.source.name} has one class, "
            f"{', '.join(data.class_names)}; a classifier needs at least two"
        )
    _check_validation(experiment, data)
    method = algorithms.get(experiment.algorithm.name)
    k = experiment.evaluation.top_k
    if k is not None and k >= classes:
        raise UserError(
            f"evaluation.top_k={k} with {classes} classes counts every prediction as correct; "
            f"lower it to {classes - 1} or less, or remove it"
        )
    smallest = min(len(indices) for _, phase in data.phases for indices in phase.train)
    if experiment.drop_last and smallest < experiment.batch_size:
        raise UserError(
            f"drop_last=true leaves a client with {smallest} training images no batch of "
            f"batch_size={experiment.batch_size}; lower batch_size to {smallest} or set "
            "drop_last=false"
        )
    if not method.requires.prompts and min(smallest, experiment.batch_size) == 1:
        _check_single_images(experiment, method, data)


def _check_single_images(
    experiment: Experiment, method: type[Algorithm], data: FederatedData
) -> None:
    """Refuse batches of one image if a network's batch normalisation cannot train on them."""
    architectures = assign_architectures(experiment.model.group, experiment.data.clients)
    auxiliary = architectures[:1] if issubclass(method, AuxiliaryMethod) else ()
    parts = (part for _, phase in data.phases for part in enumerate(phase.train))
    first: dict[str, tuple[int, int]] = {}
    for client, indices in parts:
        if len(indices) == 1 or experiment.batch_size == 1:
            for architecture in (architectures[client], *auxiliary):
                first.setdefault(architecture, (client, len(indices)))
    shape, projector = data.images.shape, experiment.model.projector
    for architecture, (client, images) in first.items():
        if _trains_on_one(architecture, shape, projector):
            continue
        remedy = "set batch_size=2 or more"
        if images == 1:
            remedy = more_per_client(experiment.data.partition.build())
        if projector is not None and _trains_on_one(architecture, shape, None):
            remedy += ", or remove model.projector"
        raise UserError(
            f"client {client} trains on batches of one image, but {architecture} (of model.group="
            f"{experiment.model.group}) has batch normalisation, which needs two; {remedy}"
        )


def _trains_on_one(architecture: str, shape: tuple[int, int, int], hidden: int | None) -> bool:
    """Return True if a network with a projector of a hidden width can train on one image."""
    channels, height, width = shape
    model = skeleton(
        architecture,
        channels=channels,
        image_size=height,
        num_classes=0,
        feature_dim=hidden or 1,
        hidden=hidden,
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # for dropout
        try:
            model.train()(Pixels.of(torch.zeros(1, channels, height, width)))
        except ValueError:  # "Expected more than 1 value per channel when training"
            return False
        except RuntimeError:  # oblong images, which are refused elsewhere
            return True
    return True


def _check_validation(experiment: Experiment, data: FederatedData) -> None:
    method = algorithms.get(experiment.algorithm.name)
    if method.requires.validation and data.validation is None:
        raise UserError(
            f"{method.name}'s clients need validation images, but data.partition="
            f"{experiment.data.partition.name} gives them none; set data.validation_fraction, for "
            "example 0.2, or data.partition=dominant_class"
        )
    phases = {round_: phase.validation for round_, phase in data.phases}
    lacking = [round_ for round_, parts in phases.items() if not any(map(len, parts or ()))]
    chooses = experiment.report.select != "test" or method.requires.validation
    if chooses and 0 < len(lacking) < len(phases):
        raise UserError(
            f"data.evolution: the phase from round {lacking[0]} has no validation images, but "
            "others have, so the best round could lie in those alone; set "
            "data.validation_fraction, for example 0.2, or report.select=test"
        )
    parts = (part for validation in phases.values() for part in enumerate(validation or ()))
    without = next((client for client, indices in parts if not len(indices)), None)
    if method.requires.validation and without is not None:
        raise UserError(
            f"client {without} has no validation image, and {method.name}'s clients each need one; "
            "raise data.validation_fraction, or "
            f"{more_per_client(experiment.data.partition.build())}"
        )
