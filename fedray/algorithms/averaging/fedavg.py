"""FedAvg: clients train the global model, the server averages what comes back.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv:1602.05629.

    Algorithm 1, server line -> weighted_mean

Methods with a global model build on this class: they say which tensors are shared, which
parameters learn, what regularises, or how the server moves.

Buffers: running statistics are averaged like weights; integer counters take the maximum. On the
wire both are statistics, which no codec, clipping or noise touches: a variance stays positive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.base import Algorithm, Downlinks, Server, ServerState, Uplinks
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.comm import Payload, travels
from fedray.config import Frozen
from fedray.models import Classifier, ClassifierOutput, buffer_names, tensor_names


@dataclass(frozen=True)
class GlobalModel(Payload):
    """The shared part of a model: what learns, and running statistics and counters."""

    weights: Mapping[str, Tensor] = travels("weights")
    buffers: Mapping[str, Tensor] = travels("statistics")

    @classmethod
    def of(cls, model: Classifier, tensors: Mapping[str, Tensor], **rest: Any) -> Self:
        """The payload of `tensors`, of which the buffers of `model` are `buffers`.

        Args:
            model: says by its structure what is a buffer.
            tensors: by name; one that is not of the model is a weight.
            rest: the other fields of the payload.
        """
        buffers = _only(tensors, buffer_names(model))
        weights = _only(tensors, tensors.keys() - buffers.keys())
        return cls(weights=weights, buffers=buffers, **rest)

    @property
    def model(self) -> dict[str, Tensor]:
        """Weights and buffers by name."""
        return {**self.weights, **self.buffers}


@dataclass(frozen=True)
class TrainedModel(GlobalModel):
    """The shared part of a client's trained model, and how many images trained it."""

    samples: int = travels("statistics")


@dataclass(frozen=True)
class PromptModel(GlobalModel):
    """The shared part of a model whose weights are prompts, counted as such."""

    weights: Mapping[str, Tensor] = travels("prompts")


@dataclass(frozen=True)
class TrainedPromptModel(TrainedModel):
    """The shared part of a client's trained prompts, and how many images trained them."""

    weights: Mapping[str, Tensor] = travels("prompts")


@algorithms.add
class FedAvg(Algorithm):
    """Whole models up and down; clients keep nothing."""

    name = "fedavg"
    paper = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    shares = "whole models"
    dense = True
    one_model = True
    down: ClassVar[type[GlobalModel]] = GlobalModel
    up: ClassVar[type[TrainedModel]] = TrainedModel
    """As what the shared part travels."""

    class HParams(Frozen):
        """What all methods with a global model have."""

        weights: Literal["samples", "uniform"] = "samples"
        """Weights of the mean: n_k/n (paper), or equal."""

    # --- what a method may say of itself ---------------------------------------------------------

    def shared(self, model: Classifier) -> Collection[str]:
        """The tensors that travel and are averaged; the others stay with the client."""
        return tensor_names(model)

    def personal(self, model: Classifier) -> Collection[str]:
        """The tensors that stay with the client: all that are not shared."""
        return tensor_names(model) - frozenset(self.shared(model))

    def supervised_loss(
        self, output: ClassifierOutput, labels: Tensor, state: ClientState
    ) -> Tensor:
        """What is learnt from the labels; a method adds its regulariser to it."""
        return F.cross_entropy(output.logits, labels)

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The shared part of the initial weights of the one architecture that all clients have."""
        return _only(server.initial(server.architecture), self.shared(server.model))

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The global model, the same for all."""
        return dict.fromkeys(clients, self.down.of(server.model, state))

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The mean of the participants' weights; without any, everything stays."""
        return weighted_mean(shares_of(uplinks, self.hp.weights), uplinks) if uplinks else state

    # --- client ----------------------------------------------------------------------------------

    def init_client(self, client: Client) -> ClientState:
        """The initial values of what is not shared."""
        own = self.personal(client.skeleton.model)
        return ClientState(_only(client.initial(), own) if own else {})

    def start(self, client: Client, state: ClientState, down: GlobalModel) -> Mapping[str, Tensor]:
        """The global model, with the client's own part."""
        return {**state.model, **down.model}

    def local_loss(self, model: Classifier, batch: Batch, down: Any, state: ClientState) -> Tensor:
        """The supervised loss; FedAvg has no other."""
        return self.supervised_loss(model(batch.images), batch.labels, state)

    def uplink(self, client: Client, model: Classifier, down: GlobalModel) -> TrainedModel:
        """The shared part of the trained model."""
        shared = _only(client.weights(model), self.shared(model))
        return self.up.of(model, shared, samples=len(client.train))

    def keep(self, client: Client, model: Classifier, state: ClientState) -> ClientState:
        """What is not shared, and the memory as it was."""
        own = self.personal(model)
        return ClientState(_only(client.save(model), own) if own else {}, state.memory)


def shares_of(uplinks: Mapping[int, TrainedModel], how: str) -> dict[int, float]:
    """p_k of each participant: n_k/n by samples, or 1/K; they sum to 1."""
    sizes = {k: float(u.samples) if how == "samples" else 1.0 for k, u in uplinks.items()}
    total = sum(sizes.values())
    return {client: size / total for client, size in sizes.items()}


def weighted_mean(
    shares: Mapping[int, float], uplinks: Mapping[int, TrainedModel]
) -> dict[str, Tensor]:
    """The mean w = sum_k p_k w_k over the participants, in client order (Algorithm 1).

    Args:
        shares: p_k by client.
        uplinks: weights and buffers by client.
    """
    models = {client: upload.model for client, upload in uplinks.items()}
    mean: dict[str, Tensor] = {}
    for name, tensor in next(iter(models.values())).items():
        if not tensor.is_floating_point():
            mean[name] = torch.stack([model[name] for model in models.values()]).amax(0)
            continue
        mean[name] = torch.zeros_like(tensor)
        for client, model in models.items():
            mean[name].add_(model[name], alpha=shares[client])
    return mean


def _only(tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name in names}
