"""SCAFFOLD: control variates correct the drift of every local step.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, arXiv:1910.06378.

    Eq. (3) -> Scaffold.train
    Eq. (4) -> new_control
    Eq. (5) -> Scaffold.server_step

Deviations:
    - With momentum, a local update is longer than K plain steps. FedNova's a_i then replaces K, so
      that the control variates keep the size of a gradient.
    - The mean has uniform weights by default, as in the paper.

Buffers: running statistics and counters are averaged as in FedAvg and have no control variates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.fednova import steps_of
from fedray.algorithms.mean import Weights
from fedray.config import LearningRate


@core.method("scaffold", "SCAFFOLD", "Karimireddy et al., ICML 2020, arXiv:1910.06378")
class Scaffold(FedAvg):
    """FedAvg with control variates on the server and on every client.

    The change of a client's variate has no counterpart in the download, so privacy clips it as a
    difference from 0.
    """

    version = 2  # privacy clips the change of the variate as a difference from 0
    requires = core.Requires(sgd=True)
    down = {"control": core.sent("weights", "the mean gradient of all clients")}
    up = {
        "change": core.sent(
            "weights",
            "the client's mean gradient of the round, from which gradient inversion starts",
            combine="sum",
        )
    }

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (paper), or samples, n_k/n (NIID-Bench)."""
    lr_server: LearningRate = 1.0
    """η_g, learning rate of the server; 1 sets the model to the mean of the clients'. Paper: 1."""

    def init_server(self, server: core.Server) -> core.ServerState:
        control = zeros(dict(server.model.named_parameters()))
        return {**super().init_server(server), "control": control}

    def train(self, local: core.LocalContext) -> core.Trained:
        """Train with the steps w - eta (g - c_i + c), Eq. (3)."""
        c = local.down.control
        c_i = local.state.memory.get("control", zeros(c))
        corrections = [(w, c[name] - c_i[name]) for name, w in local.model.named_parameters()]

        def correct() -> None:
            for w, correction in corrections:
                if w.grad is not None:  # a frozen parameter has none
                    w.grad += correction

        return core.fit(
            local,
            lambda batch: self.loss(local.model(batch.inputs), batch, local),
            before_step=correct,
        )

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        """Upload as FedAvg does, with the change of the client's control variate (option II)."""
        sent, next_state = super().finish(local, trained)
        config, down = local.client.setting.training, local.down
        length = config.lr * steps_of(trained, config)
        x, y = down.model, sent["model"]
        old = next_state.memory.get("control", zeros(down.control))
        new = {
            name: new_control(old[name], c, x[name], y[name], length)
            for name, c in down.control.items()
        }
        change = {name: control - old[name] for name, control in new.items()}
        memory = {**next_state.memory, "control": new}
        return {**sent, "change": change}, core.ClientState(next_state.model, memory)

    def server_step(
        self, state: core.ServerState, total: core.Total, server: core.Server
    ) -> core.ServerState:
        """Return x + eta_g * mean(y_i - x) and c + |S|/N * mean(c_i+ - c_i), Eq. (5)."""
        x, model = state["model"], dict(super().server_step(state, total, server)["model"])
        changes = core.mean_of(total["change"], float(self.setting.clients), state["control"])
        control = {}
        for name, c in state["control"].items():
            model[name] = x[name] + self.lr_server * (model[name] - x[name])
            control[name] = c + changes[name]
        return {"model": model, "control": control}


def zeros(parameters: Mapping[str, Tensor]) -> core.Tensors:
    """Return the initial control variate: zeros like each parameter, without buffers."""
    return {name: torch.zeros_like(w, requires_grad=False) for name, w in parameters.items()}


def new_control(old: Tensor, c: Tensor, x: Tensor, y: Tensor, length: float) -> Tensor:
    """Return c_i+ = c_i - c + (x - y_i) / (K eta), option II of Eq. (4).

    Args:
        old: c_i, the client's control variate.
        c: the server's control variate.
        x: the weights that the round began with.
        y: y_i, the trained weights.
        length: K eta.
    """
    return old - c + (x - y) / length
