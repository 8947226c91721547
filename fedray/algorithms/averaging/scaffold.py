"""SCAFFOLD: control variates correct the drift of every local step.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
ICML 2020, arXiv:1910.06378.

    Eq. (3) -> Scaffold.train
    Eq. (4) -> Scaffold.finish
    Eq. (5) -> Scaffold.server_step

Deviations:
    - With momentum, a local update is longer than K plain steps. FedNova's a_i then replaces K, so
      that the control variates keep the size of a gradient.
    - The mean has uniform weights by default, as in the paper.

Buffers: running statistics and counters are averaged as in FedAvg and have no control variates.
"""

import torch

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.fednova import steps_of
from fedray.algorithms.mean import Weights
from fedray.core import LocalContext, Server, ServerState, StepResult, Total, Trained

MOVE = "the client's mean gradient of the round, from which gradient inversion starts"


@core.method("scaffold", "SCAFFOLD", "Karimireddy et al., ICML 2020, arXiv:1910.06378")
class Scaffold(FedAvg):
    """FedAvg with control variates on the server and on every client."""

    version = 2  # privacy clips the change of a variate as a difference from 0
    requires = core.Requires(sgd=True)
    down = {"control": core.sent("weights", "the mean gradient of all clients")}
    up = {"change": core.sent("weights", MOVE, combine="sum")}

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (paper), or samples, n_k/n (NIID-Bench)."""
    lr_server: core.LearningRate = 1.0
    """η_g, learning rate of the server; 1 sets the model to the mean of the clients'. Paper: 1."""

    def init_server(self, server: Server) -> ServerState:
        zeros = {name: torch.zeros_like(w) for name, w in server.model.named_parameters()}
        return {**super().init_server(server), "control": zeros}

    def train(self, local: LocalContext) -> Trained:
        """Train with the steps w - eta (g - c_i + c), Eq. (3)."""
        c = local.down.control
        zeros = {name: torch.zeros_like(tensor) for name, tensor in c.items()}
        c_i = local.notes["control"] = local.state.memory.get("control", zeros)
        corrections = [(w, c[name] - c_i[name]) for name, w in local.model.named_parameters()]

        def correct() -> None:
            for w, correction in corrections:
                if w.grad is not None:  # a frozen parameter has none
                    w.grad += correction

        return core.fit(local, self.batch_loss(local), before_step=correct)

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        """Upload c_i+ - c_i, too: c_i+ = c_i - c + (x - y_i) / (K eta), option II of Eq. (4)."""
        upload, state = super().finish(local, trained)
        config, c, c_i = local.client.setting.training, local.down.control, local.notes["control"]
        x, y, length = local.down.model, upload["model"], config.lr * steps_of(trained, config)
        new = {name: c_i[name] - c[name] + (x[name] - y[name]) / length for name in c}
        change = {name: new[name] - c_i[name] for name in c}
        return {**upload, "change": change}, state.with_memory(control=new)

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Return x + eta_g * mean(y_i - x) and c + |S|/N * mean(c_i+ - c_i), Eq. (5)."""
        (x, c), y = (state["model"], state["control"]), super().server_step(state, total, server)
        change = core.mean_of(total["change"], float(self.setting.clients), c)
        model = {n: x[n] + self.lr_server * (y["model"][n] - x[n]) for n in c}
        return {"model": {**y["model"], **model}, "control": {n: c[n] + change[n] for n in c}}
