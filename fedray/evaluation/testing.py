"""Tests of a model that one client has, or several clients share; run where the clients run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedray import core
from fedray.base.errors import NotFinite
from fedray.evaluation.answers import Counts, count_answers
from fedray.evaluation.splits import HeldOut
from fedray.models import head_tensors


def run_test(
    name: str,
    algorithm: core.Algorithm,
    client: core.Client,
    state: core.ClientState,
    down: Any,
    splits: Sequence[HeldOut],
) -> Counts:
    """Test the model of one client, or of clients that share it.

    evaluate: test the model as the client would start its next round. The method sees neither the
    round nor its learning rate, so that a client with the same state and download gives the same
    answers in every round (`Federation.tested`).

    finetune: fine-tune the model after the last round, and discard it (FedTSP supplementary C.4,
    the -FT rows).

    Args:
        name: the name of the test, which also seeds its random streams.
        algorithm: the method.
        client: the client whose model is tested; one of the clients that share it.
        state: its state.
        down: its download.
        splits: the images of the K clients that have this model.

    Returns:
        `Answers.counts` of each client and split, int64 [K, S, 3, C]; of "finetune" those before
        fine-tuning and after each of E epochs, [K, E + 1, S, 3, C].
    """
    if name == "evaluate":
        client = replace(client, round=0, setting=algorithm.setting)
    local = algorithm.begin(client, state, down)
    counts = counts_of(algorithm, local, splits)
    if name == "evaluate":
        return counts
    fine_tune = getattr(algorithm, "fine_tune", partial(fine_tune_head, algorithm))
    tuned = [counts_of(algorithm, after_epoch, splits) for after_epoch in fine_tune(local)]
    return np.stack([counts, *tuned], axis=1)


def fine_tune_head(
    algorithm: core.Algorithm, local: core.LocalContext
) -> Iterator[core.LocalContext]:
    """Train only the head with the method's loss, for `finetune_epochs` epochs; yield after each.

    The learning rate is the experiment's, not changed by a schedule. What a method does to
    gradients in its rounds (SCAFFOLD's correction, FedKD's `clip_norm`) is not part of its loss. A
    method may replace this function by its own `fine_tune(local)`.
    """
    assert isinstance(algorithm, core.LocalTraining)
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

    Raises NotFinite if logits are NaN or infinite, because such predictions are arbitrary.

    Args:
        algorithm: the method.
        local: the context with the model.
        splits: the images of the K clients that have this model.

    Returns:
        `Answers.counts` of each client and split, int64 [K, S, 3, C].
    """
    client, k = local.client, local.client.setting.top_k
    clients = next(len(split.sizes) for split in splits if split.sizes is not None)
    columns, rows = max([len(split.classes) for split in splits]), 3 if k is None else 4
    counts = torch.zeros(
        (clients, len(splits), rows, columns), dtype=torch.int64, device=client.device
    )
    largest = torch.full((), -torch.inf, device=client.device)
    local.model.eval()
    for number, split in enumerate(splits):
        sizes, classes = split.sizes or [len(split.passes[0])], split.classes
        for logits, labels, owners in _predictions(algorithm, local, split, sizes):
            largest = torch.maximum(largest, logits.amax())
            found = count_answers(logits, labels - classes.start, owners, len(sizes), k)
            counts[:, number, :, : len(classes)] += found
    if not float(largest) < math.inf:  # NaN or +inf; -inf means that a method excludes a class
        raise NotFinite(
            f"the tested model's logits contain {float(largest)}; lower lr (now "
            f"{client.setting.training.lr:g}) or the weight of the method's own term"
        )
    return np.asarray(counts.cpu().numpy())


def _predictions(
    algorithm: core.Algorithm, local: core.LocalContext, split: HeldOut, sizes: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield logits, labels and the owner of each label, batch by batch."""
    client, model, classes = local.client, cast("Any", local.model), split.classes
    labels = torch.tensor(sizes) * split.passes[0].labels_per_image
    owners, done = torch.repeat_interleave(labels).to(client.device), 0
    is_usual = classes == range(client.setting.num_classes)
    with nullcontext() if is_usual else model.class_subset(classes):
        for batch in chain.from_iterable(map(client.batches, split.passes)):
            logits = algorithm.predict(model(batch.inputs), local)
            count = batch.labels.shape[0]
            if logits.shape != (count, len(classes)):
                raise ValueError(
                    f"{type(algorithm).__name__}.predict returned logits of shape "
                    f"{list(logits.shape)}, expected {[count, len(classes)]}: one row per image "
                    "(or pixel) and one column per class"
                )
            yield logits, batch.labels, owners[done : done + count]
            done += count
