"""Drive trainers of frozen CLIPs whose repository has no function for a federated round.

The loop over rounds, FedAvg of all tensors or of some, is written out here.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tools.originals import fedmgp
from tools.originals.federation import TRAIN, Run, State, Tensors
from tools.originals.flcore import Instead

Places = Mapping[str, Sequence[str]]
"""Names of the original's parameters, in order, that one of fedray's tensors consists of."""


@contextmanager
def small_weights(module: Any) -> Iterator[None]:
    """Let a trainer's module load fedray's small CLIP, in float32 and on the CPU."""
    weights = fedmgp.small_clip()._model.state_dict()
    jit = Instead(torch.jit, load=fedmgp.fail)
    fake = Instead(torch, jit=jit, load=lambda *_, **__: dict(weights))
    with (
        warnings.catch_warnings(action="ignore"),
        contextlib.redirect_stdout(io.StringIO()),
        patch.object(module, "torch", fake),
        patch.object(Tensor, "half", lambda self: self),
        patch.object(Tensor, "cuda", lambda self: self),
    ):
        yield


def federate(
    run: Run,
    initial: Sequence[Tensors],
    trainer: Any,
    places: Places,
    averaged: Callable[[str], bool] = lambda name: True,
) -> list[State]:
    """Train a trainer's model on fedray's draws; return a state per round, round 0 first.

    Args:
        run: fedray's run.
        initial: each client's initial weights.
        trainer: the original's, with a model that returns logits in evaluation mode.
        places: see `Places`.
        averaged: whether the tensor of a name is averaged; the others stay with their clients.
    """
    model: nn.Module = trainer.model
    kept = [dict(weights) for weights in initial]

    def load(weights: Tensors) -> None:
        model.train()  # CLIP-LoRA takes updates out of its weights
        with torch.no_grad():
            for ours, theirs in places.items():
                rows = [model.get_parameter(name) for name in theirs]
                for row, values in zip(
                    rows, weights[ours].reshape(-1, *rows[0].shape), strict=True
                ):
                    row.copy_(values)

    def save() -> dict[str, Tensor]:
        return {
            ours: torch.stack(
                [model.get_parameter(name).detach() for name in places[ours]]
            ).reshape(like.shape)
            for ours, like in initial[0].items()
        }

    def state() -> State:
        right = []
        for client, weights in enumerate(kept):
            load(weights)
            model.text_features_for_inference = None  # pFedMMA's, of an earlier model
            images, labels = run.images(run.assembly.data.test[client])
            with torch.no_grad():
                answers = model.eval()(fedmgp.as_seen(images)).argmax(1)
            right.append(float((answers == labels).float().mean()))
        return State([dict(weights) for weights in kept], right)

    states = [state()]
    for number, clients in enumerate(run.participants[1:], 1):
        run.round = number
        for client in clients:
            load(kept[client])
            trainer.train(idx=client)
            kept[client] = save()
        total = sum(TRAIN[client] for client in clients)
        for name in filter(averaged, initial[0]):
            mean: Any = sum(TRAIN[k] / total * kept[k][name] for k in clients)
            kept = [{**weights, name: mean} for weights in kept]
        states.append(state())
    return states
