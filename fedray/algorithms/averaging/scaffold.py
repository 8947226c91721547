"""SCAFFOLD: control variates correct the drift of every local step.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, arXiv:1910.06378.

    Eq. (3) -> Scaffold.local_loss, drift
    Eq. (4) -> new_control
    Eq. (5) -> Scaffold.server_update

The step w - eta (g - c_i + c) is the gradient step of the loss plus <c - c_i, w>, so the local loop
stays the common one.

Deviations:
    - With momentum rho the local way is longer than K steps; K is then FedNova's a_i, so that the
      variates keep the size of a gradient.
    - Weights of the mean are uniform, as in the paper, whatever other methods do by default.

Buffers: running statistics and counters are averaged as in FedAvg and have no variates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Downlinks, Server, ServerState, Uplinks
from fedray.algorithms.fedavg import FedAvg, GlobalModel, TrainedModel, shares_of, weighted_mean
from fedray.algorithms.fednova import effective_steps
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.comm import travels
from fedray.models import Classifier

CONTROL = "control."


@dataclass(frozen=True)
class ControlledModel(GlobalModel):
    """The global model, and c, the server's control variate."""

    control: Mapping[str, Tensor] = travels("weights")


@dataclass(frozen=True)
class ControlledUpdate(TrainedModel):
    """A trained model, and c_i+ - c_i, by how much the client's variate moved."""

    control: Mapping[str, Tensor] = travels("weights")


@algorithms.add
class Scaffold(FedAvg):
    """FedAvg with control variates on both sides."""

    name = "scaffold"
    paper = "Karimireddy et al., ICML 2020, arXiv:1910.06378"
    shares = "whole models and control variates"
    dense = True

    class HParams(FedAvg.HParams):
        """SCAFFOLD's hyper-parameters."""

        weights: Literal["samples", "uniform"] = "uniform"
        """Weights of the mean: equal (paper), or n_k/n (NIID-Bench)."""
        lr_server: float = Field(1.0, gt=0)
        """eta_g, the server's step. Paper: 1."""

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The initial weights; c = 0."""
        weights = super().init_server(server)
        parameters = dict(server.model.named_parameters())
        zeros = {CONTROL + name: weights[name] * 0 for name in parameters if name in weights}
        return {**weights, **zeros}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """X and c, the same for all."""
        weights, control = apart(state)
        down = ControlledModel.of(server.model, weights, control=control)
        return dict.fromkeys(clients, down)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """X + eta_g * mean(y_i - x) and c + |S|/N * mean(c_i+ - c_i), Eq. (5)."""
        if not uplinks:
            return state
        weights, control = apart(state)
        mean = weighted_mean(shares_of(uplinks, self.hp.weights), uplinks)
        for name in control:
            mean[name] = weights[name] + self.hp.lr_server * (mean[name] - weights[name])
        moved = {
            CONTROL + name: value
            + sum(upload.control[name] for upload in uplinks.values()) / self.setting.clients
            for name, value in control.items()
        }
        return {**mean, **moved}

    # --- client ----------------------------------------------------------------------------------

    def client_update(
        self, client: Client, state: ClientState, down: ControlledModel
    ) -> tuple[ControlledUpdate, ClientState]:
        """Train under the correction, then renew c_i (option II)."""
        model = client.load(self.start(client, state, down))
        steps = client.fit(model, lambda m, batch: self.local_loss(m, batch, down, state))
        sent = self.uplink(client, model, down)
        knobs = self.setting.training
        length = knobs.lr * effective_steps(steps, knobs.momentum)
        memory, moved = dict(state.memory), {}
        for name, c in down.control.items():
            old = state.memory.get(CONTROL + name, c * 0)
            new = new_control(old, c, down.weights[name], sent.weights[name].cpu(), length)
            memory[CONTROL + name], moved[name] = new, new - old
        kept = self.keep(client, model, state)
        return ControlledUpdate(**vars(sent), control=moved), ClientState(kept.model, memory)

    def local_loss(
        self, model: Classifier, batch: Batch, down: ControlledModel, state: ClientState
    ) -> Tensor:
        """The supervised loss and <c - c_i, w>, whose gradient is the correction of Eq. (3)."""
        loss = super().local_loss(model, batch, down, state)
        own = {
            name: state.memory[CONTROL + name]
            for name in down.control
            if CONTROL + name in state.memory
        }
        if not own:  # c_i = 0, and c = 0 unless others have taken part before
            return loss + drift(model, down.control)
        return loss + drift(model, {name: c - own[name] for name, c in down.control.items()})


def drift(model: Classifier, correction: Mapping[str, Tensor]) -> Tensor:
    """<c - c_i, w> over all parameters; its gradient is c - c_i, Eq. (3)."""
    parameters = dict(model.named_parameters())
    products = [(parameters[n] * value.to(parameters[n])).sum() for n, value in correction.items()]
    return torch.stack(products).sum()


def new_control(old: Tensor, c: Tensor, x: Tensor, y: Tensor, length: float) -> Tensor:
    """c_i+ = c_i - c + (x - y_i) / (K eta), option II of Eq. (4).

    Args:
        old: c_i.
        c: the server's variate.
        x: where the client started.
        y: where it ended.
        length: K eta.
    """
    return old - c + (x - y) / length


def apart(state: ServerState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The server's weights and its variate."""
    weights = {name: tensor for name, tensor in state.items() if not name.startswith(CONTROL)}
    control = {
        name.removeprefix(CONTROL): tensor
        for name, tensor in state.items()
        if name.startswith(CONTROL)
    }
    return weights, control
