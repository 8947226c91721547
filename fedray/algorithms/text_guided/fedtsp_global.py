"""FedTSP with one global model: whole models are averaged beside the text prototypes.

Wu et al., "Textual-semantics-powered prototypes for heterogeneous federated learning", CVPR 2026,
arXiv:2503.13543, section 3.5 and Table 5.

    Algorithm 1, first prototypes -> FedTSPGlobal.untrained
    local loss                    -> FedTSPGlobal.local_loss
    Algorithm 1, server           -> FedTSPGlobal.server_update

The personalised form, "Ours-FT" in Table 5, is this with `finetune_epochs=20`: after the last round
each client trains the head alone.

Deviations:
    - The paper gives no other λ for this form; the heterogeneous one's stays.
    - The first prototypes are those of the global model before round 1, which is sent for it.

Buffers: as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedray.algorithms.base import Downlinks, Server, ServerState, Uplinks
from fedray.algorithms.fedavg import FedAvg, GlobalModel
from fedray.algorithms.fedproto_global import PrototypedUpdate
from fedray.algorithms.fedtsp import FedTSP, TextPrototypes
from fedray.algorithms.prototypes import local_prototypes
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.models import Classifier


@dataclass(frozen=True)
class TextedModel(GlobalModel, TextPrototypes):
    """The global model, the text prototypes and τ."""


@algorithms.add
class FedTSPGlobal(FedTSP, FedAvg):
    """FedAvg whose clients align to the text prototypes that their image prototypes train."""

    name = "fedtsp_global"
    shares = "whole models and class prototypes up, the model and text prototypes down"
    one_model = True

    class HParams(FedTSP.HParams, FedAvg.HParams):
        """Those of both; λ = 0 is FedAvg."""

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The initial weights, and what FedTSP's server has."""
        return {**FedAvg.init_server(self, server), **FedTSP.init_server(self, server)}

    def untrained(self, state: ServerState, server: Server) -> GlobalModel:
        """The global model before round 1."""
        return self._model(state, server)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Weights, text prototypes and τ, the same for all."""
        text = FedTSP.downlink(self, state, [0], server)[0]
        down = TextedModel(**vars(self._model(state, server)), **vars(text))
        return dict.fromkeys(clients, down)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The prompts' step, and the mean of the weights."""
        if not uplinks:
            return state
        learnt = self.learn_prompts(state, uplinks, server)
        return {**learnt, **FedAvg.server_update(self, state, uplinks, server)}

    def _model(self, state: ServerState, server: Server) -> GlobalModel:
        shared = sorted(self.shared(server.model))
        return GlobalModel.of(server.model, {name: state[name] for name in shared})

    # --- client ----------------------------------------------------------------------------------

    def local_loss(
        self, model: Classifier, batch: Batch, down: TextedModel, state: ClientState
    ) -> Tensor:
        """Cross-entropy + λ R, as the heterogeneous form has it."""
        return self.loss(model, batch, down)

    def uplink(self, client: Client, model: Classifier, down: Any) -> PrototypedUpdate:
        """The trained weights, and the client's prototypes."""
        trained = FedAvg.uplink(self, client, model, down)
        return PrototypedUpdate(**vars(trained), **vars(local_prototypes(client, model)))
