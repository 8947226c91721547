"""FedAvg of a model and of extra parameters, for example a logit scale or a text projection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, GlobalModel, TrainedModel, select


@dataclass(frozen=True)
class ExtendedModel(GlobalModel):
    """The global model and the extra parameters."""

    extra: Mapping[str, Tensor] = core.payload_field("weights")


@dataclass(frozen=True)
class ExtendedUpdate(TrainedModel):
    """A trained model and trained extra parameters."""

    extra: Mapping[str, Tensor] = core.payload_field("weights")


class ExtraParameters(FedAvg):
    """FedAvg that trains and averages extra parameters together with the model's.

    The loss reads the extra parameters from `local.extra`.
    """

    stacks = True
    uploads: ClassVar[core.PayloadTypes] = (ExtendedUpdate,)
    downloads: ClassVar[core.PayloadTypes] = (ExtendedModel,)
    down_type = ExtendedModel
    averaged = ("model", "extra")
    one_model = True

    def extra_parameters(self) -> Mapping[str, Tensor]:
        """Return the initial values by name; no model may have a parameter of the same name."""
        raise NotImplementedError

    def init_server(self, server: core.Server) -> core.ServerState:
        return {**super().init_server(server), "extra": self.extra_parameters()}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        return core.with_extra(super().begin(client, state, down), down.extra)

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[ExtendedUpdate, core.ClientState]:
        update, next_state = super().finish(local, trained)
        extra = select(trained.tensors, local.extra)
        return ExtendedUpdate(**vars(update), extra=extra), next_state
