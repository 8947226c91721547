"""Tests of one client's model, run where the client runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import torch

from fedray.core import (
    Algorithm,
    Client,
    ClientState,
    EvalSet,
    HeldOut,
    LocalContext,
    LocalTraining,
    Samples,
    fit,
)
from fedray.errors import NotFinite
from fedray.evaluation.protocols import ClassSubset, FineTuned
from fedray.evaluation.score import Score, TopK, overlap, within_top
from fedray.models import head_tensors


class Test(Protocol):
    """A test of one client's model; the method's code sees all arguments but the last."""

    def __call__(
        self,
        algorithm: Algorithm,
        client: Client,
        state: ClientState,
        down: Any,
        held_out: HeldOut,
        /,
    ) -> tuple[Score, ...]:
        """Return the scores of the client's model, or of several models."""


def own_test(
    algorithm: Algorithm, client: Client, state: ClientState, down: Any, held_out: HeldOut
) -> tuple[Score, ...]:
    """Test the client's model as it starts its next round.

    The method sees neither the round nor its learning rate, so that a client whose state and
    download are the same has the same score in every round (`KeptScores`).
    """
    timeless = replace(client, round=0, setting=algorithm.setting)
    return (score(algorithm, algorithm.begin(timeless, state, down), held_out),)


def fine_tuned(
    algorithm: Algorithm, client: Client, state: ClientState, down: Any, held_out: HeldOut
) -> tuple[Score, ...]:
    """Fine-tune after the last round and test; nothing of it is kept.

    Returns:
        The scores before, and after each epoch.

    Paper: FedTSP supplementary C.4, the -FT rows.
    """
    local = algorithm.begin(client, state, down)
    before = score(algorithm, local, held_out)
    if isinstance(algorithm, FineTuned):
        turns = algorithm.fine_tune(local)
    else:
        assert isinstance(algorithm, LocalTraining)
        turns = fine_tune_head(algorithm, local)
    return (before, *(score(algorithm, tuned, held_out) for tuned in turns))


TESTS: Mapping[str, Test] = MappingProxyType({"evaluate": own_test, "finetune": fine_tuned})
"""The tests by name, as executors are asked for them; part of their random streams' purpose."""


def fine_tune_head(algorithm: LocalTraining, local: LocalContext) -> Iterator[LocalContext]:
    """Train the head alone under the method's loss, `finetune_epochs` times an epoch.

    The learning rate is the experiment's, where no schedule has changed it.
    """
    head, lr = head_tensors(local.model), algorithm.setting.training.lr
    for epoch in range(algorithm.setting.finetune_epochs):
        client = local.client.with_schedule(1 + epoch, epochs=1, lr=lr)
        fit(
            replace(local, client=client, trainable=head),
            lambda batch: algorithm.loss(local.model(batch.inputs), batch, local),
        )
        yield local


@torch.no_grad()
def score(algorithm: Algorithm, local: LocalContext, held_out: HeldOut) -> Score:
    """Test a model on everything that is held out for its client, in evaluation mode."""
    tested = _with_sets(algorithm, local, held_out.test, held_out.eval_sets)
    if held_out.validation is None:
        return tested
    validated = _with_sets(algorithm, local, held_out.validation, held_out.validation_sets)
    return replace(tested, validation=validated)


def _with_sets(
    algorithm: Algorithm, local: LocalContext, own: Samples, sets: Mapping[str, EvalSet]
) -> Score:
    """On the client's own images, among all classes, and on what all clients share."""
    known = range(local.client.setting.num_classes)
    shared: dict[str, Score] = {}
    for name, eval_set in sets.items():
        if eval_set.classes == known:
            shared[name] = _on(algorithm, local, eval_set)
            continue
        assert isinstance(local.model, ClassSubset)
        with local.model.class_subset(eval_set.classes):
            shared[name] = _on(algorithm, local, eval_set)
    return replace(_on(algorithm, local, EvalSet(own, known)), eval_sets=shared)


def _on(algorithm: Algorithm, local: LocalContext, eval_set: EvalSet) -> Score:
    local.model.eval()
    columns = len(eval_set.classes)
    k, device = local.client.setting.top_k, local.client.device
    counts = torch.zeros(3, columns, dtype=torch.int64, device=device)
    among = torch.zeros((), dtype=torch.int64, device=device)
    largest = torch.full((), -torch.inf, device=device)
    for batch in local.client.batches(eval_set.samples):
        logits = algorithm.predict(local.model(batch.inputs), local)
        largest = torch.maximum(largest, logits.amax())
        labels = batch.labels - eval_set.classes.start
        if logits.shape != (len(labels), columns):
            raise ValueError(
                f"{type(algorithm).__name__}.predict gives logits of shape {list(logits.shape)}, "
                f"expected {[len(labels), columns]}: a row for each image (or pixel), and a "
                "column for each class"
            )
        counts += overlap(logits.argmax(dim=1), labels, columns)
        if k is not None:
            among += within_top(logits, labels, k)
    _check_finite(float(largest), local)
    found = Score.by_class(*counts.tolist())
    return found if k is None else replace(found, top=TopK(k, int(among)))


def _check_finite(largest: float, local: LocalContext) -> None:
    """Refuse a model whose logits are NaN or infinite: it is right by chance.

    Args:
        largest: of all logits; -inf alone is a class that a method leaves out.
        local: whose model it is.

    Raises:
        NotFinite: when it is neither finite nor -inf.
    """
    if not largest < math.inf:
        raise NotFinite(
            f"the tested model's logits hold {largest}; lower lr (now "
            f"{local.client.setting.training.lr:g}) or the weight of the method's own term"
        )
