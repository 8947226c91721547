"""FedAvg: clients train the global model, the server averages what comes back.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, arXiv:1602.05629.

    Algorithm 1, server line -> weighted_mean

Buffers: running statistics are averaged like weights; integer counters take the maximum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedray.algorithms.base import Algorithm, Downlinks, Server, ServerState, Uplinks
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState
from fedray.comm import Payload, travels
from fedray.models import Classifier


@dataclass(frozen=True)
class GlobalModel(Payload):
    """The weights and buffers of the global model."""

    weights: Mapping[str, Tensor] = travels("weights")


@dataclass(frozen=True)
class TrainedModel(Payload):
    """A client's trained weights and buffers, and how many images trained them."""

    weights: Mapping[str, Tensor] = travels("weights")
    samples: int = travels("statistics")


@algorithms.add
class FedAvg(Algorithm):
    """Whole models up and down; clients keep nothing."""

    name = "fedavg"
    paper = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    shares = "whole models"

    def init_server(self, server: Server) -> ServerState:
        """The initial weights of the one architecture that all clients share."""
        return server.initial_weights()

    def init_client(self, client: Client) -> ClientState:
        """Nothing is kept."""
        return ClientState({})

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The global model, the same for all."""
        return dict.fromkeys(clients, GlobalModel(state))

    def start(self, client: Client, state: ClientState, down: GlobalModel) -> Mapping[str, Tensor]:
        """The global model."""
        return down.weights

    def client_update(
        self, client: Client, state: ClientState, down: GlobalModel
    ) -> tuple[TrainedModel, ClientState]:
        """Train the global model and upload it."""
        model = client.load(down.weights)
        client.fit(model, lambda model, batch: self.loss(model, batch, down))
        return self.uplink(client, model, down), state

    def uplink(self, client: Client, model: Classifier, down: GlobalModel) -> TrainedModel:
        """The trained weights."""
        return TrainedModel(client.weights(model), len(client.train))

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The mean of the participants' weights, by samples."""
        return weighted_mean(uplinks) if uplinks else state


def weighted_mean(uplinks: Mapping[int, TrainedModel]) -> dict[str, Tensor]:
    """The mean w = sum_k n_k/n w_k over the participants, in client order (Algorithm 1)."""
    total = sum(upload.samples for upload in uplinks.values())
    first = next(iter(uplinks.values())).weights
    mean: dict[str, Tensor] = {}
    for name, tensor in first.items():
        if not tensor.is_floating_point():
            mean[name] = torch.stack([u.weights[name] for u in uplinks.values()]).amax(0)
            continue
        mean[name] = torch.zeros_like(tensor)
        for upload in uplinks.values():
            mean[name].add_(upload.weights[name], alpha=upload.samples / total)
    return mean
