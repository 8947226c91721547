"""FedTGP: the server trains prototypes, with a margin between classes, on the clients' prototypes.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024, arXiv:2401.03230.

    Eq. (10) -> margin_logits      contrast with margin on Euclidean distances (Eq. (7))
    Eq. (9)  -> adaptive_margin    delta = min(max distance, threshold)

Deviations:
    - The margin is the largest distance of a class mean to the nearest other one, as in the
      official code and FedTSP's comparison. The paper's Eq. (9) takes the largest distance of all
      pairs of class means, which is larger.
    - Clients upload the prototypes of their trained weights. The official code uploads prototypes
      that are one round old, because it reloads the model before the new one is saved
      (`stale=true`).
    - The distance in the clients' loss is a mean squared error over batch and width, as in HtFLlib,
      whose scripts use λ = 10; the paper has a Euclidean distance and λ = 0.1. λ = 1 as in FedTSP's
      comparison (supplementary C.4), which uses the mean squared error, too.
    - The classifier head predicts, as in FedTSP's comparison; HtFLlib predicts the class of the
      nearest trained prototype.
    - Prototypes are means over all training images of a client; the official code and HtFLlib omit
      the last incomplete batch.
    - The server's batches have the clients' batch size, as in the official code.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import class_average
from fedray.algorithms.prototypes.class_prototypes import (
    PrototypeAveraging,
    ServerTraining,
    local_prototypes,
    prototype_loss,
)
from fedray.core import Batch, ClassifierOutput, LocalContext, Server, ServerState, Uplinks
from fedray.models import drawn_linear


@core.method("fedtgp", "FedTGP", "Zhang et al., AAAI 2024, arXiv:2401.03230")
class FedTGP(PrototypeAveraging, ServerTraining):
    """Prototypes that the server trains with a margin between classes; models stay personal."""

    proto_agg: ClassVar = "uniform"

    lambda_: core.LossWeight = 1.0
    """λ, weight of the prototype term; 0 gives Local. FedTSP's comparison: 1; HtFLlib: 10."""
    margin_threshold: float = Field(100.0, ge=0, le=1e6)
    """Upper bound of the margin; 0 gives a softmax of distances without margin."""
    stale: StrictBool = False
    """Whether clients upload the prototypes of their weights before training (official code)."""

    def init_server(self, server: Server) -> ServerState:
        classes, d = self.setting.num_classes, self.setting.feature_dim
        random = server.streams.torch("fedtgp")
        embedding = torch.randn(classes, d, generator=random)
        (w1, b1), (w2, b2) = drawn_linear(d, d, random), drawn_linear(d, d, random)
        generator = {"embedding": embedding, "w1": w1, "b1": b1, "w2": w2, "b2": b2}
        return {**super().init_server(server), "generator": generator}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Train the generator on the uploaded prototypes, and generate all C prototypes."""
        total = core.total_of(uplinks, partial(core.combined_rows, self))
        means, present = class_average(total["vectors"])
        margin = adaptive_margin(means[present], self.margin_threshold)

        def loss(generator: core.Tensors, batch: tuple[Tensor, Tensor]) -> Tensor:
            logits = margin_logits(*batch, trained_prototypes(generator), margin)
            return F.cross_entropy(logits, batch[1])

        generator = self.train_on_uploads(state["generator"], loss, uplinks, server)
        on_device = {name: tensor.to(server.device) for name, tensor in generator.items()}
        vectors = trained_prototypes(on_device).cpu()
        return {"generator": generator, "vectors": vectors, "present": torch.ones_like(present)}

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        return prototype_loss(output, batch.labels, local.down, self.lambda_)

    def train(self, local: LocalContext) -> core.Trained:
        """Train; with `stale`, note the prototypes of the weights before training."""
        if self.stale:
            local.notes.update(local_prototypes(local.client, local.model))
        return super().train(local)

    def finish(self, local: LocalContext, trained: core.Trained) -> core.StepResult:
        upload, state = super().finish(local, trained)
        return local.notes or upload, state


def trained_prototypes(generator: Mapping[str, Tensor]) -> Tensor:
    """Return the trainable prototypes [C, d]: P_c = W2 ReLU(W1 e_c + b1) + b2."""
    hidden = F.relu(F.linear(generator["embedding"], generator["w1"], generator["b1"]))
    return F.linear(hidden, generator["w2"], generator["b2"])


def margin_logits(vectors: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Return negative distances [B, C] of uploaded [B, d] and trained prototypes [C, d], Eq. (10).

    The margin delta is added to the distance from the prototype of the label's class.
    """
    # This mode is exact, needs no tensor of size B x C x d, and has gradient 0 at distance 0.
    distance = torch.cdist(vectors, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    return -(distance + margin * F.one_hot(labels, len(prototypes)))


def adaptive_margin(means: Tensor, threshold: float) -> float:
    """Return the margin: the largest distance to the nearest other class mean, bounded, Eq. (9).

    `means` are the unweighted mean prototypes of the present classes [c, d]; `threshold` is tau,
    the upper bound.
    """
    if len(means) < 2:
        return 0.0
    distance = torch.cdist(means, means)
    return min(float(distance.fill_diagonal_(float("inf")).amin(dim=1).max()), threshold)
