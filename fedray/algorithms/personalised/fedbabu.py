"""FedBABU: the head keeps its initial values; only the body is trained and averaged.

Oh et al., "FedBABU: Towards Enhanced Representation for Federated Image Classification",
ICLR 2022, arXiv:2106.06042.

    Algorithm 1, local update -> FedBABU.begin
    Algorithm 1, aggregation  -> FedBABU.shared

All clients receive the server's initial head before the first round, since with
`model.init=independent` their initial heads would differ. The paper's fine-tuning after training
is not part of this method.

Buffers: those of the body are averaged as in FedAvg; the head has none.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.models import head_tensors, tensor_names


@core.method("fedbabu", "FedBABU", "Oh et al., ICLR 2022, arXiv:2106.06042")
class FedBABU(FedAvg):
    """FedAvg of the model's body under one fixed random head, which clients store."""

    one_model = True
    keep_head: ClassVar = core.gift(head=core.sent("weights", "nothing: initial weights"))

    def shared(self, model: core.Classifier) -> Collection[str]:
        """Return the names of the body, which is the model without its head (Algorithm 1)."""
        return tensor_names(model) - head_tensors(model)

    def personal(self, model: core.Classifier) -> Collection[str]:
        """Return no names, because the client keeps the head in its memory."""
        return ()

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the initial body and head."""
        head = select(server.initial(server.architecture), head_tensors(server.model))
        return {**super().init_server(server), "head": head}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the global body and the fixed head; only the body is trainable (Algorithm 1)."""
        local = super().begin(client, replace(state, model=state.memory["head"]), down)
        body = {name for name, _ in local.model.named_parameters()} - head_tensors(local.model)
        return replace(local, trainable=body)
