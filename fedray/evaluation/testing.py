"""Tests of a model that one client has, or several clients share; run where the clients run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import torch

from fedray import core
from fedray.errors import NotFinite
from fedray.evaluation.protocols import ClassSubset, FineTuned
from fedray.evaluation.score import Score, TopK, overlap, within_top
from fedray.models import head_tensors


class Test(Protocol):
    """A test of a model; the method's code gets all arguments but the last."""

    def __call__(
        self,
        algorithm: core.Algorithm,
        client: core.Client,
        state: core.ClientState,
        down: Any,
        held_out: Sequence[core.HeldOut],
        /,
    ) -> list[tuple[Score, ...]]:
        """Return the scores of the client's model, or of several models.

        Args:
            algorithm: the method.
            client: the client whose model is tested; one of the clients that share it.
            state: its state.
            down: its download.
            held_out: the test images of each client that has this model.

        Returns:
            For each of these clients, one score per tested model.
        """


def own_test(
    algorithm: core.Algorithm,
    client: core.Client,
    state: core.ClientState,
    down: Any,
    held_out: Sequence[core.HeldOut],
) -> list[tuple[Score, ...]]:
    """Test the client's model as it would start its next round.

    The method sees neither the round nor its learning rate, so that a client with the same state
    and download has the same score in every round (`ScoreCache`).
    """
    timeless = replace(client, round=0, setting=algorithm.setting)
    local = algorithm.begin(timeless, state, down)
    return [(tested,) for tested in scores(algorithm, local, held_out)]


def fine_tuned(
    algorithm: core.Algorithm,
    client: core.Client,
    state: core.ClientState,
    down: Any,
    held_out: Sequence[core.HeldOut],
) -> list[tuple[Score, ...]]:
    """Fine-tune after the last round and test; the fine-tuned model is discarded.

    Returns:
        The scores before fine-tuning, and after each epoch.

    Paper: FedTSP supplementary C.4, the -FT rows.
    """
    local = algorithm.begin(client, state, down)
    untuned = scores(algorithm, local, held_out)
    if isinstance(algorithm, FineTuned):
        epochs = algorithm.fine_tune(local)
    else:
        assert isinstance(algorithm, core.LocalTraining)
        epochs = fine_tune_head(algorithm, local)
    return [*zip(untuned, *(scores(algorithm, tuned, held_out) for tuned in epochs), strict=True)]


TESTS: Mapping[str, Test] = MappingProxyType({"evaluate": own_test, "finetune": fine_tuned})
"""The tests by the name that executors use, which also seeds their random streams."""


def fine_tune_head(
    algorithm: core.LocalTraining, local: core.LocalContext
) -> Iterator[core.LocalContext]:
    """Train only the head with the method's loss, for `finetune_epochs` epochs; yield after each.

    The learning rate is the experiment's, not changed by a schedule.
    """
    head, lr = head_tensors(local.model), algorithm.setting.training.lr
    for epoch in range(algorithm.setting.finetune_epochs):
        client = local.client.with_schedule(1 + epoch, epochs=1, lr=lr)
        core.fit(
            replace(local, client=client, trainable=head),
            lambda batch: algorithm.loss(local.model(batch.inputs), batch, local),
        )
        yield local


@torch.no_grad()
def scores(
    algorithm: core.Algorithm, local: core.LocalContext, held_out: Sequence[core.HeldOut]
) -> list[Score]:
    """Test a model in evaluation mode on all held-out images of its clients.

    Args:
        algorithm: the method.
        local: the context with the model.
        held_out: the test images of each client that has this model; shared sets are equal.

    Returns:
        The score of each client. All images are tested in one pass.
    """
    first = held_out[0]
    tested = _with_sets(algorithm, local, [images.test for images in held_out], first.eval_sets)
    validation = [images.validation for images in held_out if images.validation is not None]
    if not validation:
        return tested
    validated = _with_sets(algorithm, local, validation, first.validation_sets)
    return [replace(a, validation=b) for a, b in zip(tested, validated, strict=True)]


def _with_sets(
    algorithm: core.Algorithm,
    local: core.LocalContext,
    own_images: Sequence[core.Samples],
    sets: Mapping[str, core.EvalSet],
) -> list[Score]:
    """Test on each client's own images, among all trained classes, and on the shared sets."""
    trained_classes = range(local.client.setting.num_classes)
    shared: dict[str, Score] = {}
    for name, eval_set in sets.items():
        if eval_set.classes == trained_classes:
            (shared[name],) = _test_parts(algorithm, local, [eval_set.samples], trained_classes)
            continue
        assert isinstance(local.model, ClassSubset)
        with local.model.class_subset(eval_set.classes):
            (shared[name],) = _test_parts(algorithm, local, [eval_set.samples], eval_set.classes)
    tested = _test_parts(algorithm, local, own_images, trained_classes)
    return [replace(score, eval_sets=shared) for score in tested] if shared else tested


def _test_parts(
    algorithm: core.Algorithm,
    local: core.LocalContext,
    parts: Sequence[core.Samples],
    classes: range,
) -> list[Score]:
    """Return the score of each part; a batch may contain images of several parts."""
    local.model.eval()
    columns, k, device = len(classes), local.client.setting.top_k, local.client.device
    owners = torch.repeat_interleave(torch.tensor([len(part) for part in parts])).to(device)
    counts = torch.zeros(len(parts), 3, columns, dtype=torch.int64, device=device)
    top_correct = torch.zeros(len(parts), dtype=torch.int64, device=device)
    largest = torch.full((), -torch.inf, device=device)
    done, everything = 0, core.Samples.joined(parts)
    for batch in local.client.batches(everything):
        logits = algorithm.predict(local.model(batch.inputs), local)
        largest = torch.maximum(largest, logits.amax())
        labels = batch.labels - classes.start
        if logits.shape != (len(labels), columns):
            raise ValueError(
                f"{type(algorithm).__name__}.predict returned logits of shape "
                f"{list(logits.shape)}, expected {[len(labels), columns]}: "
                "one row per image (or pixel) and one column per class"
            )
        images = len(labels) // everything.labels_per_image
        owner = owners[done : done + images].repeat_interleave(everything.labels_per_image)
        done += images
        counts += overlap(logits.argmax(dim=1), labels, columns, owner, len(parts))
        if k is not None:
            top_correct += torch.bincount(
                owner[within_top(logits, labels, k)], minlength=len(parts)
            )
    _check_finite(float(largest), local)
    part_scores = [Score.by_class(*of_part) for of_part in counts.tolist()]
    if k is None:
        return part_scores
    return [
        replace(score, top=TopK(k, count))
        for score, count in zip(part_scores, top_correct.tolist(), strict=True)
    ]


def _check_finite(largest: float, local: core.LocalContext) -> None:
    """Refuse a model whose logits are NaN or infinite: its predictions are arbitrary.

    Args:
        largest: the largest logit; -inf alone means that a method excludes a class.
        local: the context with the model.

    Raises:
        NotFinite: if `largest` is NaN or +inf.
    """
    if not largest < math.inf:
        raise NotFinite(
            f"the tested model's logits contain {largest}; lower lr (now "
            f"{local.client.setting.training.lr:g}) or the weight of the method's own term"
        )
