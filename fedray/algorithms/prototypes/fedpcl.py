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

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import aggregate, row_means
from fedray.algorithms.prototypes.class_prototypes import (
    GLOBAL_PROTOTYPES,
    LOCAL_PROTOTYPES,
    PrototypeSharing,
    empty_prototypes,
    with_latest,
)
from fedray.config import Temperature
from fedray.models import Classifier, ClassifierOutput


@core.method("fedpcl", "FedPCL", "Tan et al., NeurIPS 2022, arXiv:2209.10083")
class FedPCL(PrototypeSharing):
    """Contrast of features with the prototypes of all clients; models stay personal."""

    requires = core.Requires(head=False)
    down: ClassVar[Any] = {
        **GLOBAL_PROTOTYPES,
        "sets": core.sent(
            "prototypes", "every client's class means, to every other client", "N C d"
        ),
    }
    """The global prototypes and those of every client [N, C, d], where a class that a client does
    not hold has the global one."""

    tau: Temperature = 0.07
    """τ, temperature of both contrastive losses. Paper and FedTSP's comparison: 0.07."""

    def init_server(self, server: core.Server) -> core.ServerState:
        classes, d = server.setting.num_classes, server.setting.feature_dim
        clients = server.setting.clients
        return {
            **empty_prototypes(server),
            "sets": torch.zeros(clients, classes, d),
            "held": torch.zeros(clients, classes, dtype=torch.bool),
        }

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        padded = state["sets"].where(state["held"].unsqueeze(2), state["vectors"])
        down = self.down(state["vectors"], state["present"], padded)
        return dict.fromkeys(clients, down)

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Replace the participants' sets, and average each class over the clients that hold it."""
        if not uplinks:
            return state
        vectors, present = aggregate(uplinks, self.setting.num_classes, "uniform")
        sets, held = state["sets"].clone(), state["held"].clone()
        for client, upload in uplinks.items():
            sets[client], held[client] = 0.0, False
            sets[client, upload.classes], held[client, upload.classes] = upload.vectors, True
        return {**with_latest(state, vectors, present), "sets": sets, "held": held}

    def client_update(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[Any, core.ClientState]:
        """Train if the server has prototypes; compute the client's, and keep them to predict."""
        local = self.begin(client, state, down)
        if not down.present.any():
            return self.finish(local, core.Trained(client.weights(local.model), 0))
        return self.finish(local, self.train(local))

    def loss(self, output: ClassifierOutput, batch: core.Batch, local: core.LocalContext) -> Tensor:
        z, down = F.normalize(output.features.float(), dim=1), local.down
        sets = (down.vectors.unsqueeze(0), down.sets)
        l_g, l_p = (prototype_contrast(z, batch.labels, s, down.present, self.tau) for s in sets)
        return l_g + l_p

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        upload = normalised_prototypes(local.client, local.model)
        classes = upload["classes"].cpu()
        vectors = torch.zeros(self.setting.num_classes, self.setting.feature_dim)
        present = torch.zeros(self.setting.num_classes, dtype=torch.bool)
        vectors[classes], present[classes] = upload["vectors"].cpu(), True
        memory = {**local.state.memory, "vectors": vectors, "present": present}
        return upload, core.ClientState(local.client.save(local.model), memory)

    def predict(self, output: ClassifierOutput, local: core.LocalContext) -> Tensor:
        """Return inner products [B, C] with the client's prototypes; -inf for classes without one.

        A client that has not taken part has no prototypes; the result is then zero.
        """
        z, memory = F.normalize(output.features.float(), dim=1), local.state.memory
        if "vectors" not in memory:
            return z.new_zeros(len(z), self.setting.num_classes)
        products: Tensor = z @ memory["vectors"].T
        return products.masked_fill(~memory["present"], -torch.inf)


def normalised_prototypes(client: core.Client, model: Classifier) -> dict[str, Tensor]:
    """Return the means of the unit features of each class; the means are not normalised."""
    features = client.features(model, client.train)
    labels = client.train.labels.to(features.device)
    means, counts = row_means(F.normalize(features, dim=1), labels, client.setting.num_classes)
    held = counts.nonzero().squeeze(1)
    return dict(zip(LOCAL_PROTOTYPES, (held, means[held], counts[held]), strict=True))


def prototype_contrast(
    z: Tensor, labels: Tensor, sets: Tensor, present: Tensor, tau: float
) -> Tensor:
    """Return the mean over batch and S sets of -log(e^{<z, P_y>/tau} / sum_c e^{<z, P_c>/tau}).

    Args:
        z: unit features [B, d].
        labels: y [B].
        sets: prototypes [S, C, d].
        present: mask of the classes that have a prototype [C]. Sums exclude other classes, and an
            image of another class counts as zero.
        tau: temperature.
    """
    with torch.autocast(z.device.type, enabled=False):  # autocast would multiply in bfloat16
        logits = torch.einsum("bd,scd->sbc", z.float(), sets) / tau
    logits = logits.masked_fill(~present, -torch.inf).flatten(0, 1)
    targets = labels.masked_fill(~present[labels], -100).repeat(len(sets))
    return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / len(targets)
