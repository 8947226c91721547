"""What cannot be combined in one experiment: a method's requirements against what is given."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fedray.config import Experiment
from fedray.core import SGD, Algorithm, algorithms
from fedray.data.configurable import build
from fedray.data.inspect import check_sizes
from fedray.errors import UserError
from fedray.models import assign_architectures, check_pretrained, is_dense
from fedray.runtime.privacy import check_privacy


def check(experiment: Experiment) -> None:
    """Check that a method can do what an experiment asks of it.

    Raises:
        UserError: with one sentence about the first thing that it cannot.
    """
    method = algorithms.get(experiment.algorithm.name)
    if experiment.finetune_epochs > 0 and not method.requires.head:
        raise UserError(
            f"finetune_epochs={experiment.finetune_epochs} trains heads, but {method.name}'s "
            "models have none; set finetune_epochs=0"
        )
    if experiment.data.novel and not method.requires.prompts:
        raise UserError(
            f"data.novel=true asks for classes that nobody trained on, but {method.name}'s models "
            "know no others; set data.novel=false, or choose a method of prompts around a CLIP"
        )
    _check_models(experiment, method)
    _check_images(experiment)
    _check_schedule(experiment)
    if method.requires.sgd:
        _check_sgd(experiment, method)
    check_privacy(experiment, method)


def _check_images(experiment: Experiment) -> None:
    """What would be found out when images are decoded, before anything starts."""
    keys = experiment.data
    if keys.root is not None and keys.image_size is None and not keys.source.params:
        _sizes_agree(keys.root, keys.source.name)


@cache
def _sizes_agree(root: str, source: str) -> None:
    """Once in a process that goes on, whatever the number of its experiments."""
    check_sizes(Path(root), source)


def _check_schedule(experiment: Experiment) -> None:
    warmup = build(
        experiment.lr_schedule, "learning rate schedule", "lr_schedule"
    ).params.warmup_rounds
    if warmup >= experiment.rounds:
        raise UserError(
            f"lr_schedule.warmup_rounds={warmup} leaves no round at lr={experiment.lr:g}; lower it "
            f"or raise rounds={experiment.rounds}"
        )
    final = experiment.lr_schedule.params.get("final_lr", 0.0)
    if final > experiment.lr:
        raise UserError(
            f"lr_schedule.final_lr={final:g} is above lr={experiment.lr:g}, where it falls from; "
            "lower it or raise lr"
        )


def _check_sgd(experiment: Experiment, method: type[Algorithm]) -> None:
    """A method that counts the steps of SGD: nothing else may be in an update."""
    optimizer = build(experiment.optimizer, "optimizer", "optimizer")
    if not isinstance(optimizer, SGD):
        raise UserError(
            f"{method.name} takes an update for a sum of gradients, which optimizer="
            f"{optimizer.name} does not make it; set optimizer=sgd"
        )
    if optimizer.params.keep:
        raise UserError(
            f"{method.name} takes an update for the gradients of its round, but "
            "optimizer.keep=true adds those of earlier ones; set optimizer.keep=false"
        )
    if experiment.clip_grad_norm is not None:
        raise UserError(
            f"{method.name} takes an update for a sum of gradients, which clip_grad_norm="
            f"{experiment.clip_grad_norm:g} shortens; leave clip_grad_norm out"
        )


def _check_models(experiment: Experiment, method: type[Algorithm]) -> None:
    models = assign_architectures(experiment.model.group, experiment.data.clients)
    if is_dense(experiment.model.group):
        _check_dense(experiment, method)
    pretrained = experiment.model.pretrained
    if pretrained is None:
        return
    if method.requires.prompts:
        raise UserError(
            f"model.pretrained={pretrained} is for backbones, but {method.name} has prompts around "
            "model.clip; remove model.pretrained"
        )
    check_pretrained(pretrained, models)


def _check_dense(experiment: Experiment, method: type[Algorithm]) -> None:
    group, augmentation = experiment.model.group, experiment.data.augment.name
    if not method.dense:
        dense = " or ".join(entry.name for entry in algorithms.entries() if entry.dense)
        raise UserError(
            f"model.group={group} predicts every pixel, which "
            f"algorithm={method.name} cannot: it is defined for one label an image; choose "
            f"algorithm={dense}, or a model.group for whole images"
        )
    if augmentation != "none":
        raise UserError(
            f"data.augment={augmentation} moves images but not their masks, which "
            f"model.group={group} learns from; set data.augment=none"
        )
