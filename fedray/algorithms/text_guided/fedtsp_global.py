"""FedTSP with one global model: whole models are averaged, too.

Wu et al., "Textual-semantics-powered prototypes for heterogeneous federated learning", CVPR 2026,
arXiv:2503.13543, section 3.5 and Table 5.

    Algorithm 1, first prototypes -> FedTSPGlobal.first_download
    local loss                    -> FedTSP.loss (text_guided/fedtsp.py)
    Algorithm 1, server           -> FedTSPGlobal.server_step

The personalised form, "Ours-FT" in Table 5, is this method with `finetune_epochs=20`: after the
last round, each client trains its head alone.

Deviations:
    - The paper states no λ for this form, so λ is that of the heterogeneous form.
    - The first image prototypes are those of the initial global model, which the server sends
      before round 1.

Buffers: as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prototypes.class_prototypes import (
    LOCAL_PROTOTYPES,
    PrototypeSharing,
    local_prototypes,
)
from fedray.algorithms.text_guided.fedtsp import FedTSP


@core.method("fedtsp_global", "FedTSP, one global model", FedTSP.paper)
class FedTSPGlobal(FedTSP, FedAvg, PrototypeSharing):
    """FedAvg with FedTSP's alignment of image features with text prototypes; λ = 0 gives FedAvg."""

    one_model = True
    dense = False

    def init_server(self, server: core.Server) -> core.ServerState:
        return {**FedAvg.init_server(self, server), **FedTSP.init_server(self, server)}

    def first_download(self, state: core.ServerState, server: core.Server) -> core.Payload:
        """Return the global model before round 1."""
        model: core.Payload = FedAvg.down(state["model"])
        return model

    @core.step(down=FedAvg.down, up=LOCAL_PROTOTYPES)
    def untrained_prototypes(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[core.Tensors, core.ClientState]:
        prototypes: tuple[core.Tensors, core.ClientState]
        prototypes = FedTSP.untrained_prototypes(self, client, state, down)
        return prototypes

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        return FedTSP.downlink(self, state, clients, server)

    def server_step(
        self, state: core.ServerState, total: core.Total, server: core.Server
    ) -> core.ServerState:
        trained = FedTSP.server_step(self, state, total, server)
        return {**trained, **FedAvg.server_step(self, state, total, server)}

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        update, next_state = FedAvg.finish(self, local, trained)
        return {**update, **local_prototypes(local.client, local.model)}, next_state
