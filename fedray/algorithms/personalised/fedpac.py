"""FedPAC: features align with shared prototypes, and each client's head is a mixture of all heads.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023, arXiv:2306.11867.

    Algorithm 1, client: statistics before training -> head_statistics
    Algorithm 1, client: head, then extractor -> FedPAC.train
    Algorithm 1, client: alignment target -> alignment_targets
    Algorithm 1, server: bias of foreign heads -> head_bias
    Algorithm 1, server: weights of the heads -> simplex_minimum, head_weights

A round has a second exchange: the server sends each participant its combined head, so that the
personal model is tested.

Deviations:
    - The extractor, its normalisation included, is frozen while the head is trained, as in the
      official code; PFLlib updates running statistics in that epoch.
    - V + D is positive semi-definite by construction and computed in double precision. The official
      code's workarounds (dropping eigenvalues below 0.01, or falling back to the local head) are
      therefore not needed.
    - The experiment's optimiser trains head and extractor; official code: SGD with momentum 0.5 and
      weight decay 5e-4.
    - Statistics and prototypes are computed in evaluation mode.

Buffers: those of the extractor are averaged as in FedAvg.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.algorithms.mean import ClassWeights
from fedray.algorithms.prototypes.class_prototypes import PrototypeAveraging, prototype_loss
from fedray.core import LocalContext, ServerState, StepResult
from fedray.models import head_tensors, tensor_names

MIXTURE = "a mixture of clients' heads, in which those of similar clients weigh most"


@core.method("fedpac", "FedPAC", "Xu et al., ICLR 2023, arXiv:2306.11867")
class FedPAC(PrototypeAveraging, FedAvg):
    """A shared extractor, aligned by prototypes, and a personal mixture of heads per client."""

    version = 3  # the order in which privacy noises an upload's fields
    dense = False
    up = {
        "head": core.sent("weights", "the client's head"),
        "means": core.sent("prototypes", "the mean features of its classes before training", "C d"),
        "variance": core.sent("statistics", "how much the features vary", number=float),
    }
    """Besides a trained extractor with prototypes: the trained head, h, the mean feature of each
    class times the class's share, before training, and V, the variance of the client's features."""

    proto_agg: ClassWeights = "weighted"
    """Mean of a class's prototypes: weighted, by samples (paper), or uniform, by clients (code)."""
    lambda_: core.LossWeight = 1.0
    """λ, weight of the alignment; 0 only combines the heads. Official code: 1."""
    head_epochs: int = Field(1, ge=0, le=10_000)
    """Epochs that train the head alone, before the `epochs` of the extractor; 0 leaves the head
    untrained. Paper: 1."""
    head_lr: core.LearningRate = 0.1
    """Learning rate of the head. Official code: 0.1; PFLlib: the experiment's `lr`."""
    min_weight: float = Field(0.001, ge=0, lt=1)
    """Heads of at most this weight are excluded from a mixture; 0 includes all heads of positive
    weight. Official code: 0.001."""

    def shared(self, model: core.Classifier) -> Collection[str]:
        """Return the extractor's names; heads are uploaded, but combined for each client."""
        return tensor_names(model) - head_tensors(model)

    def round(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Run one round and send the combined heads to the clients whose upload arrived."""
        down = self.downlink(state, exchange.participants, exchange.server)
        uplinks = exchange.call("client_update", down)
        if not uplinks:
            return state
        exchange.call("receive_head", self.combine_heads(uplinks))
        return self.server_update(state, uplinks, exchange.server)

    def combine_heads(self, uplinks: core.Uplinks) -> dict[int, Any]:
        """Return each participant's combined head, sum_j a_j head_j over the participants j."""
        uploads = list(uplinks.values())
        means = torch.stack([upload.means for upload in uploads])
        variances = torch.tensor([upload.variance for upload in uploads], dtype=torch.float64)
        stacked = core.stack_trees([upload.head for upload in uploads])
        heads: dict[int, Any] = {}
        for index, client in enumerate(uplinks):
            weights = head_weights(means, variances, index, self.min_weight)
            mixed = {n: torch.tensordot(weights, h.double(), 1).float() for n, h in stacked.items()}
            heads[client] = self.receive_head.down(mixed)
        return heads

    def train(self, local: LocalContext) -> core.Trained:
        """Compute statistics, train the head alone, then the extractor with the alignment loss."""
        client, labels = local.client, local.client.train.labels.to(local.client.device)
        features = client.features(local.model, client.train)
        means, variance = head_statistics(features, labels, self.setting.num_classes)
        local.notes.update(means=means, variance=variance)
        head = {name for name, _ in local.model.named_parameters()} - local.down.model.keys()
        if self.head_epochs:
            alone = client.with_schedule(epochs=self.head_epochs, lr=self.head_lr)
            super().train(replace(local, client=alone, trainable=head))
        targets = alignment_targets(local.down, means, labels)

        def loss(batch: core.Batch) -> Tensor:
            return prototype_loss(local.model(batch.inputs), batch.labels, targets, self.lambda_)

        return core.fit(replace(local, trainable=local.down.model.keys()), loss)

    def finish(self, local: LocalContext, trained: core.Trained) -> StepResult:
        upload, state = super().finish(local, trained)
        head = select(trained.tensors, head_tensors(local.model))
        return {**upload, "head": head, **local.notes}, state

    @core.step(down={"head": core.sent("weights", MIXTURE)})
    def receive_head(self, client: core.Client, state: core.ClientState, down: Any) -> StepResult:
        """Replace the client's head by the combined one."""
        return None, core.ClientState({**state.model, **down.head}, state.memory)


def head_statistics(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, float]:
    """Return h [C, d] and V >= 0 of features z [n, d], from which head weights are computed.

    With pi_c the share of class c: h_c = pi_c * mean_c, zero for classes that the client does not
    hold, and V = (sum_c pi_c E_c||z||² - sum_c pi_c² ||mean_c||²) / n, which is
    (E||z||² - ||h||²) / n.
    """
    n, d = features.shape
    z, labels = features.cpu().double(), labels.cpu()  # not every accelerator has float64
    h = torch.zeros(classes, d, dtype=z.dtype, device=z.device).index_add_(0, labels, z) / n
    variance = (z.square().sum(1).mean() - h.square().sum()) / n
    return h.float().to(features.device), max(float(variance), 0.0)


def alignment_targets(down: Any, means: Tensor, labels: Tensor) -> Any:
    """Return the download with its prototypes completed by the client's for classes without one.

    If the server has no prototype, nothing is aligned. `means` are h [C, d] of `head_statistics`,
    `labels` those of all local images [n].
    """
    if not down.present.any():
        return down
    share = torch.bincount(labels, minlength=len(means)) / len(labels)
    held = share > 0
    local = means / torch.where(held, share, 1).unsqueeze(1)
    vectors = down.vectors.where(down.present.unsqueeze(1), local)
    return down.replaced(vectors=vectors, present=down.present | held)


def head_bias(means: Tensor, target: int) -> Tensor:
    """Return D_jk = sum_c <h_i,c - h_j,c, h_i,c - h_k,c> [K, K], a Gram matrix; row i is zero.

    `means` are h of the K clients [K, C, d], `target` is i, the client whose head is combined.
    """
    flat = means.double().flatten(1)
    gram = flat @ flat.T  # cheaper than a product of differences for each pair (j, k)
    return (gram[target, target] - gram[:, target]).unsqueeze(1) + (gram - gram[target])


def simplex_minimum(matrix: Tensor) -> Tensor:
    """Return the a that minimises a^T Q a subject to a >= 0 and sum(a) = 1, in double precision.

    With Q = R^T R [K, K], the minimiser of ||R x||² + (1^T x - 1)² over x >= 0 is a multiple of a.
    It is the exact solution of a non-negative least squares problem.
    """
    from scipy.optimize import nnls  # takes a second to import

    scale = float(matrix.trace()) or 1.0
    values, vectors = np.linalg.eigh(matrix.double().numpy() / scale)
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T
    count = len(matrix)
    x, _ = nnls(np.vstack([root, np.ones(count)]), np.append(np.zeros(count), 1.0))
    return torch.from_numpy(x / x.sum())


def head_weights(means: Tensor, variances: Tensor, target: int, min_weight: float) -> Tensor:
    """Return the weights [K] of all heads in client i's head: argmin_a a^T (diag(V) + D) a.

    Weights up to `min_weight` are set to 0, and the others scaled to sum to 1.
    """
    weights = simplex_minimum(torch.diag(variances.double()) + head_bias(means, target))
    large = weights.where(weights > min_weight, 0)
    # With more than 1/min_weight equal heads, no weight is large; then all heads stay.
    return large / large.sum() if large.any() else weights
