"""FedNova: updates are divided by the number of local steps before they are averaged.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, arXiv:2007.07481.

    Section 4, a_i       -> effective_steps
    Section 4, the update -> normalised_average

Deviations:
    - Clients weigh by samples, as all methods here; NIID-Bench counts batches.

Buffers: running statistics and counters are averaged as in FedAvg, not normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedray.algorithms.base import Server, ServerState, Uplinks
from fedray.algorithms.fedavg import FedAvg, GlobalModel, TrainedModel, shares_of, weighted_mean
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState
from fedray.comm import travels


@dataclass(frozen=True)
class NormalisedModel(TrainedModel):
    """A trained model, and a_i, by how many steps its way is divided."""

    steps: float = travels("statistics")


@algorithms.add
class FedNova(FedAvg):
    """FedAvg of normalised updates."""

    name = "fednova"
    paper = "Wang et al., NeurIPS 2020, arXiv:2007.07481"
    shares = "whole models"
    dense = True

    def client_update(
        self, client: Client, state: ClientState, down: GlobalModel
    ) -> tuple[NormalisedModel, ClientState]:
        """Train, and say how many steps it took."""
        model = client.load(self.start(client, state, down))
        steps = client.fit(model, lambda m, batch: self.local_loss(m, batch, down, state))
        sent = self.uplink(client, model, down)
        taken = effective_steps(steps, self.setting.training.momentum)
        return NormalisedModel(**vars(sent), steps=taken), self.keep(client, model, state)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Move by the normalised average; buffers as in FedAvg."""
        if not uplinks:
            return state
        shares = shares_of(uplinks, self.hp.weights)
        parameters = {name for name, _ in server.model.named_parameters()}
        moved = normalised_average(
            {name: tensor for name, tensor in state.items() if name in parameters}, shares, uplinks
        )
        return {**weighted_mean(shares, uplinks), **moved}


def effective_steps(steps: int, momentum: float) -> float:
    """a_i: K for plain SGD; (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) with momentum rho."""
    if momentum == 0:
        return float(steps)
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def normalised_average(
    weights: Mapping[str, Tensor],
    shares: Mapping[int, float],
    uplinks: Mapping[int, NormalisedModel],
) -> dict[str, Tensor]:
    """X - (sum_i p_i a_i) * sum_i p_i (x - y_i) / a_i.

    Args:
        weights: x, the global parameters.
        shares: p_i by client.
        uplinks: y_i and a_i by client.
    """
    total = sum(shares[client] * upload.steps for client, upload in uplinks.items())
    moved: dict[str, Tensor] = {}
    for name, x in weights.items():
        moved[name] = x.clone()
        for client, upload in uplinks.items():
            alpha = total * shares[client] / upload.steps
            moved[name].sub_(x - upload.weights[name], alpha=alpha)
    return moved
