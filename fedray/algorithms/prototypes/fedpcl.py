"""FedPCL: features are contrasted with all clients' class prototypes; no weights are sent.

Tan et al., "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach",
NeurIPS 2022, arXiv:2209.10083. As in FedTSP's comparison, this is PFLlib's form, which trains from
scratch.

    local prototypes, PFLlib collect_protos -> normalised_prototypes
    L = L_g + L_p, PFLlib train -> FedPCL.loss, prototype_contrast
    inference, PFLlib test_metrics -> FedPCL.predict

Deviations:
    - Whole models are trained with PFLlib's loss. The paper trains a projector on frozen
      pre-trained backbones, with two views of each image, a contrast over the batch and no L_g.
    - Rows of prototypes are in the order of the classes. PFLlib stacks rows in the order in which
      classes were encountered, but indexes them by label.
    - In downloads, a class that a client does not hold has the newest global prototype in its row.
      Clients never predict with these rows.
    - As long as the server has no prototypes, clients only compute prototypes; afterwards all
      participants train. In PFLlib, every client only computes prototypes when it first
      participates.
    - Gradients are not clipped; PFLlib clips them at norm 10.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray import core
from fedray.algorithms.prototypes.class_prototypes import LOCAL_PROTOTYPES, PrototypeAveraging
from fedray.core import Batch, ClassifierOutput, Downlinks, LocalContext, Server, ServerState


@core.method("fedpcl", "FedPCL", "Tan et al., NeurIPS 2022, arXiv:2209.10083")
class FedPCL(PrototypeAveraging):
    """Contrast of features with the prototypes of all clients; models stay personal."""

    requires = core.Requires(head=False)
    proto_agg: ClassVar = "uniform"
    down: ClassVar[Any] = {
        "sets": core.sent("prototypes", "every client's class means, to every client", "N C d"),
    }
    """The global prototypes and those of every client [N, C, d], where a class that a client does
    not hold has the global one."""

    tau: core.Temperature = 0.07
    """τ, temperature of both contrastive losses. Paper and FedTSP's comparison: 0.07."""

    def init_server(self, server: Server) -> ServerState:
        state = super().init_server(server)
        sets = torch.zeros(self.setting.clients, *state["vectors"].shape)
        return {**state, "sets": sets, "held": torch.zeros(sets.shape[:2], dtype=torch.bool)}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        padded = state["sets"].where(state["held"].unsqueeze(2), state["vectors"])
        return super().downlink({**state, "sets": padded}, clients, server)

    def server_update(self, state: ServerState, uplinks: Any, server: Server) -> ServerState:
        """Replace the participants' sets, and average each class over the clients that hold it."""
        sets, held = state["sets"].clone(), state["held"].clone()
        for client, upload in uplinks.items():
            sets[client], held[client] = 0.0, False
            sets[client, upload.classes], held[client, upload.classes] = upload.vectors, True
        return {**super().server_update(state, uplinks, server), "sets": sets, "held": held}

    def train(self, local: LocalContext) -> core.Trained:
        """Train if the server has prototypes."""
        if not local.down.present.any():
            return core.Trained(local.client.weights(local.model), 0)
        return super().train(local)

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        z, down = F.normalize(output.features.float(), dim=1), local.down
        sets = (down.vectors.unsqueeze(0), down.sets)
        l_g, l_p = (prototype_contrast(z, batch.labels, s, down.present, self.tau) for s in sets)
        return l_g + l_p

    def finish(self, local: LocalContext, trained: core.Trained) -> core.StepResult:
        """Upload the client's prototypes, and keep them to predict."""
        upload = normalised_prototypes(local.client, local.model)
        classes, vectors = upload["classes"].cpu(), upload["vectors"].cpu()
        means = torch.zeros(self.setting.num_classes, self.setting.feature_dim)
        means = means.index_copy(0, classes, vectors)
        present = torch.zeros(len(means), dtype=torch.bool).index_fill(0, classes, True)
        state = core.ClientState(local.client.save(local.model), local.state.memory)
        return upload, state.with_memory(vectors=means, present=present)

    def predict(self, output: ClassifierOutput, local: LocalContext) -> Tensor:
        """Return inner products [B, C] with the client's prototypes; -inf for classes without one.

        A client that has not taken part has no prototypes; the result is then zero.
        """
        z, memory = F.normalize(output.features.float(), dim=1), local.state.memory
        if "vectors" not in memory:
            return z.new_zeros(len(z), self.setting.num_classes)
        products: Tensor = z @ memory["vectors"].T
        return products.masked_fill(~memory["present"], -torch.inf)


def normalised_prototypes(client: core.Client, model: core.Classifier) -> dict[str, Tensor]:
    """Return the means of the unit features of each class; the means are not normalised."""
    features = F.normalize(client.features(model, client.train), dim=1)
    labels = client.train.labels.to(features.device)
    means, counts = core.row_means(features, labels, client.setting.num_classes)
    held = counts.nonzero().squeeze(1)
    return dict(zip(LOCAL_PROTOTYPES, (held, means[held], counts[held]), strict=True))


def prototype_contrast(
    z: Tensor, labels: Tensor, sets: Tensor, present: Tensor, tau: float
) -> Tensor:
    """Return the mean over batch and S sets of -log(e^{<z, P_y>/tau} / sum_c e^{<z, P_c>/tau}).

    z are unit features [B, d], the sets of prototypes [S, C, d]. Sums exclude classes that are not
    `present` [C], and an image of such a class counts as zero.
    """
    with torch.autocast(z.device.type, enabled=False):  # autocast would multiply in bfloat16
        logits = torch.einsum("bd,scd->sbc", z.float(), sets) / tau
    logits = logits.masked_fill(~present, -torch.inf).flatten(0, 1)
    targets = labels.masked_fill(~present[labels], -100).repeat(len(sets))
    return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / len(targets)
