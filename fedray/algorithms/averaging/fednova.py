"""FedNova: updates are divided by their number of local steps before the server averages them.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, arXiv:2007.07481.

    Section 4, a_i       -> effective_steps
    Section 4, the update -> normalised_average

Deviations:
    - Clients are weighted by samples, as in all methods here. NIID-Bench weighted them by batches
      until December 2022, and by samples since.

Buffers: running statistics and counters are averaged as in FedAvg, not normalised.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.core import LocalContext, Server, ServerState, StepResult, Total, Trained
from fedray.models import buffer_names


def normalised(method: Any, upload: Any) -> core.StateTree:
    """Return n_i a_i, n_i / a_i and n_i y_i / a_i, whose sums FedNova needs besides FedAvg's."""
    weight = torch.tensor(method.weight(upload)).double()
    share = float(weight) / upload.steps
    trained = {n: y.double() * share for n, y in upload.model.items() if y.is_floating_point()}
    return {"steps": weight * upload.steps, "inverse": weight / upload.steps, "trained": trained}


@core.method("fednova", "FedNova", "Wang et al., NeurIPS 2020, arXiv:2007.07481")
class FedNova(FedAvg):
    """FedAvg of updates that are normalised by the number of local steps."""

    requires = core.Requires(sgd=True)
    up = {"steps": core.sent("statistics", "its number of steps", number=float, combine=normalised)}
    """`steps` is a_i, the divisor of the client's update."""

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        upload, state = super().finish(local, trained)
        return {**upload, "steps": steps_of(trained, self.setting.training)}, state

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Move the model by the normalised average; average buffers as FedAvg does."""
        model, means = state["model"], super().server_step(state, total, server)["model"]
        sums, buffers = total["steps"], buffer_names(server.model)
        p_a, p_by_a = (float(sums[name] / total["weight"]) for name in ("steps", "inverse"))
        y = {n: t / total["weight"] for n, t in sums["trained"].items() if n not in buffers}
        weights = normalised_average(select(model, y), p_a, p_by_a, y)
        return {"model": select({**model, **means, **weights}, model)}


def steps_of(trained: Trained, config: core.TrainingConfig) -> float:
    """Return a_i of a client's training; for methods that require SGD."""
    sgd = config.optimizer
    assert isinstance(sgd, core.SGD)
    return effective_steps(trained.steps, sgd.momentum, nesterov=sgd.nesterov)


def effective_steps(steps: int, momentum: float, *, nesterov: bool = False) -> float:
    """Return a_i, the total weight of all gradients in the sum of K steps.

    Plain SGD: K. Momentum rho: m = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho). Nesterov's
    momentum: K + rho m.
    """
    if momentum == 0:
        return float(steps)
    added = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    return steps + momentum * added if nesterov else added


def normalised_average(
    model: Mapping[str, Tensor], steps: float, inverse: float, trained: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return x - (sum_i p_i a_i) * sum_i p_i (x - y_i) / a_i.

    x is the `model`, sum_i p_i a_i `steps`, sum_i p_i / a_i `inverse`, and sum_i p_i y_i / a_i
    `trained`, in double precision.
    """
    return {
        name: (x - steps * (x.double() * inverse - trained[name])).to(x.dtype)
        for name, x in model.items()
    }
