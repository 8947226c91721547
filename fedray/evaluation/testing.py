"""Tests of a model that one client has, or several clients share; run where the clients run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedray import core
from fedray.errors import NotFinite
from fedray.evaluation.answers import Counts, count_answers
from fedray.evaluation.protocols import ClassSubset, FineTuned
from fedray.evaluation.splits import HeldOut
from fedray.models import head_tensors

Test: TypeAlias = Callable[
    [core.Algorithm, core.Client, core.ClientState, Any, Sequence[HeldOut]], Counts
]
"""A test of the model of one client, or of clients that share it; see `own_test`."""


def own_test(
    algorithm: core.Algorithm,
    client: core.Client,
    state: core.ClientState,
    down: Any,
    splits: Sequence[HeldOut],
) -> Counts:
    """Test the client's model as it would start its next round.

    The method sees neither the round nor its learning rate, so that a client with the same state
    and download gives the same answers in every round (`Federation.tested`).

    Args:
        algorithm: the method.
        client: the client whose model is tested; one of the clients that share it.
        state: its state.
        down: its download.
        splits: the images of the K clients that have this model.

    Returns:
        `Answers.counts` of each client and split, int64 [K, S, 3, C].
    """
    timeless = replace(client, round=0, setting=algorithm.setting)
    return counts_of(algorithm, algorithm.begin(timeless, state, down), splits)


def fine_tuned(
    algorithm: core.Algorithm,
    client: core.Client,
    state: core.ClientState,
    down: Any,
    splits: Sequence[HeldOut],
) -> Counts:
    """Fine-tune after the last round and test; the fine-tuned model is discarded.

    Args and counts are those of `own_test`.

    Returns:
        The counts before fine-tuning and after each of E epochs, int64 [K, E + 1, S, 3, C].

    Paper: FedTSP supplementary C.4, the -FT rows.
    """
    local = algorithm.begin(client, state, down)
    counts = [counts_of(algorithm, local, splits)]
    if isinstance(algorithm, FineTuned):
        epochs = algorithm.fine_tune(local)
    else:
        assert isinstance(algorithm, core.LocalTraining)
        epochs = fine_tune_head(algorithm, local)
    counts += [counts_of(algorithm, tuned, splits) for tuned in epochs]
    return np.stack(counts, axis=1)


TESTS: Mapping[str, Test] = MappingProxyType({"evaluate": own_test, "finetune": fine_tuned})
"""The tests by the name that executors use, which also seeds their random streams."""


def fine_tune_head(
    algorithm: core.LocalTraining, local: core.LocalContext
) -> Iterator[core.LocalContext]:
    """Train only the head with the method's loss, for `finetune_epochs` epochs; yield after each.

    The learning rate is the experiment's, not changed by a schedule. What a method does to
    gradients in its rounds (SCAFFOLD's correction, FedKD's `clip_norm`) is not part of its loss.
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
def counts_of(
    algorithm: core.Algorithm, local: core.LocalContext, splits: Sequence[HeldOut]
) -> Counts:
    """Test a model in evaluation mode on all images of its clients.

    Args:
        algorithm: the method.
        local: the context with the model.
        splits: the images of the K clients that have this model.

    Returns:
        `Answers.counts` of each client and split, int64 [K, S, 3, C].
    """
    client, k = local.client, local.client.setting.top_k
    clients = next(len(split.sizes) for split in splits if split.sizes is not None)
    columns, rows = max(len(split.classes) for split in splits), 3 if k is None else 4
    counts = torch.zeros(
        (clients, len(splits), rows, columns), dtype=torch.int64, device=client.device
    )
    largest = torch.full((), -torch.inf, device=client.device)
    local.model.eval()
    for number, split in enumerate(splits):
        sizes, classes = split.sizes or [len(split.passes[0])], split.classes
        with _among(classes, local):
            for batch, owners in _batches(client, split.passes, sizes):
                logits = algorithm.predict(local.model(batch.inputs), local)
                _check_shape(logits, (len(batch.labels), len(classes)), algorithm)
                largest = torch.maximum(largest, logits.amax())
                labels = batch.labels - classes.start
                found = count_answers(logits, labels, owners, len(sizes), k)
                counts[:, number, :, : len(classes)] += found
    _check_finite(float(largest), local)
    return np.asarray(counts.cpu().numpy())


def _batches(
    client: core.Client, passes: Sequence[core.Samples], sizes: Sequence[int]
) -> Iterator[tuple[core.Batch, Tensor]]:
    """Yield batches of images of several clients, and the owner of each label in a batch."""
    labels = torch.tensor(sizes) * passes[0].labels_per_image
    owners, done = torch.repeat_interleave(labels).to(client.device), 0
    for batch in chain.from_iterable(map(client.batches, passes)):
        yield batch, owners[done : done + len(batch.labels)]
        done += len(batch.labels)


def _among(classes: range, local: core.LocalContext) -> AbstractContextManager[None]:
    """Let the model predict among some classes."""
    if classes == range(local.client.setting.num_classes):
        return nullcontext()
    assert isinstance(local.model, ClassSubset)
    return local.model.class_subset(classes)


def _check_shape(logits: Tensor, expected: tuple[int, int], algorithm: core.Algorithm) -> None:
    if logits.shape != expected:
        raise ValueError(
            f"{type(algorithm).__name__}.predict returned logits of shape {list(logits.shape)}, "
            f"expected {list(expected)}: one row per image (or pixel) and one column per class"
        )


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
