"""FedTSP with one global model: whole models are averaged, too.

Wu et al., "Textual-semantics-powered prototypes for heterogeneous federated learning", CVPR 2026,
arXiv:2503.13543, section 3.5 and Table 5.

    Algorithm 1, first prototypes -> FedTSPGlobal.untrained_prototypes
    local loss                    -> FedTSP.loss (text_guided/fedtsp.py)
    Algorithm 1, server           -> FedTSP.server_step (text_guided/fedtsp.py)

The personalised form, "Ours-FT" in Table 5, is this method with `finetune_epochs=20`: after the
last round, each client trains its head alone.

Deviations:
    - The paper states no λ for this form, so λ is that of the heterogeneous form.
    - The first image prototypes are those of the initial global model, which the server sends
      before round 1.

Buffers: as in FedAvg.
"""

from typing import Any

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prototypes.class_prototypes import LOCAL_PROTOTYPES
from fedray.algorithms.text_guided.fedtsp import FedTSP
from fedray.core import Client, ClientState, StepResult


@core.method("fedtsp_global", "FedTSP, one global model", FedTSP.paper)
class FedTSPGlobal(FedTSP, FedAvg):
    """FedAvg with FedTSP's alignment of image features with text prototypes; λ = 0 gives FedAvg."""

    version = 2  # the order in which privacy noises an upload's fields
    one_model = True
    dense = False

    @core.step(down=FedAvg.down, up=LOCAL_PROTOTYPES)
    def untrained_prototypes(self, client: Client, state: ClientState, down: Any) -> StepResult:
        """Upload the prototypes of the initial global model."""
        result: StepResult = super().untrained_prototypes(client, state, down)
        return result
