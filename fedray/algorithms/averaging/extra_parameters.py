"""FedAvg of a model and of extra parameters, for example a logit scale or a text projection."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select


class ExtraParameters(FedAvg):
    """FedAvg that trains and averages extra parameters together with the model's.

    The loss reads the extra parameters from `local.extra`.
    """

    one_model = True
    dense = False
    down = {"extra": core.sent("weights")}
    up = {"extra": core.sent("weights", combine="mean")}

    extra: ClassVar[Mapping[str, Any]] = {}
    """The initial values, numbers or tensors, by name; what numbers became is reported."""

    def extra_parameters(self) -> Mapping[str, Tensor]:
        """Return the initial values by name; no model may have a parameter of the same name."""
        return {n: torch.as_tensor(v, dtype=torch.float32) for n, v in self.extra.items()}

    def init_server(self, server: core.Server) -> core.ServerState:
        return {**super().init_server(server), "extra": self.extra_parameters()}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        return core.with_extra(super().begin(client, state, down), down.extra)

    def finish(self, local: core.LocalContext, trained: core.Trained) -> core.StepResult:
        upload, state = super().finish(local, trained)
        for name in self.extra:
            if trained.tensors[name].ndim == 0:
                local.client.reports[name] = float(trained.tensors[name])
        return {**upload, "extra": select(trained.tensors, local.extra)}, state
