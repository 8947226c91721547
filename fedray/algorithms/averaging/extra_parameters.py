"""FedAvg of a model and of extra parameters: a scale of the logits, a projection of the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedray.algorithms.averaging.fedavg import (
    FedAvg,
    GlobalModel,
    TrainedModel,
    select,
)
from fedray.core import (
    Client,
    ClientState,
    Downlinks,
    LocalContext,
    PayloadTypes,
    Server,
    ServerState,
    Trained,
    payload_field,
    with_extra,
)


@dataclass(frozen=True)
class ExtendedModel(GlobalModel):
    """The global model and the extra parameters."""

    extra: Mapping[str, Tensor] = payload_field("weights")


@dataclass(frozen=True)
class ExtendedUpdate(TrainedModel):
    """A trained model and trained extra parameters."""

    extra: Mapping[str, Tensor] = payload_field("weights")


class ExtraParameters(FedAvg):
    """FedAvg that trains and averages extra parameters like those of the model.

    A loss finds them in `local.extra`.
    """

    uploads: ClassVar[PayloadTypes] = (ExtendedUpdate,)
    downloads: ClassVar[PayloadTypes] = (ExtendedModel,)
    averaged = ("model", "extra")

    def extra_parameters(self) -> Mapping[str, Tensor]:
        """Their initial values, by names that no model has; the only hook a method overrides."""
        raise NotImplementedError

    def init_server(self, server: Server) -> ServerState:
        """The initial weights and extra parameters."""
        return {**super().init_server(server), "extra": self.extra_parameters()}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The global model and the extra parameters, the same for all."""
        down = ExtendedModel.of(server.model, state["model"], extra=state["extra"])
        return dict.fromkeys(clients, down)

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """The global model, and copies of the extra parameters."""
        return with_extra(super().begin(client, state, down), down.extra)

    def finish(self, local: LocalContext, trained: Trained) -> tuple[ExtendedUpdate, ClientState]:
        """As FedAvg, with the extra parameters."""
        update, kept = super().finish(local, trained)
        extra = select(trained.tensors, local.extra)
        return ExtendedUpdate(**vars(update), extra=extra), kept
