"""FedFA: one anchor per class aligns the features and classifiers of all clients.

Zhou et al., "FedFA: Federated Learning with Feature Anchors to Align Features and Classifiers for
Heterogeneous Data", IEEE Transactions on Mobile Computing 2024, arXiv:2211.09299.

    anchor loss            -> anchor_loss
    classifier calibration -> calibration
    local anchors          -> moved_anchors
    global anchors         -> combined_rows, mean_of (core/sums.py)

The registered name contains "anchors" because another method is called FedFA too (feature
augmentation).

Deviations:
    - An anchor does not move in an epoch whose batches hold no image of its class (`drop_last`);
      the official code pulls the anchor to 0.
    - λ = 1 as in FedTSP's comparison (supplementary C.4); the official code uses 0.1.

Buffers: as in FedAvg.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.losses import similarity_analysis
from fedray.core import Batch, ClassifierOutput, LocalContext, StepResult, Trained
from fedray.evaluation.protocols import Analysis


@core.method("fedfa_anchors", "FedFA (anchors)", "Zhou et al., IEEE TMC 2024, arXiv:2211.09299")
class FedFAAnchors(FedAvg):
    """FedAvg of models and of one feature anchor per class; clients keep no state."""

    dense = False
    down = {"anchors": core.sent("prototypes", "the participants' mean class features", "C d")}
    up = {  # a mean in double precision: an anchor that no client has moved stays bit for bit
        "anchors": core.sent(
            "prototypes",
            "its classes (the anchors that moved) and their means",
            "C d",
            combine="mean",
        )
    }

    lambda_: core.LossWeight = 1.0
    """λ, weight of the anchor loss; 0 omits it. FedTSP's comparison: 1; official code: 0.1."""
    calibration_lr: float = Field(0.001, ge=0, le=1e6)
    """Adam's learning rate in the calibration of the head; 0 omits it. Official code: 0.001."""
    anchor_momentum: float = Field(0.5, ge=0, le=1)
    """Momentum of the anchors' mean over epochs; 1 fixes the anchors. Official code: 0.5."""

    def init_server(self, server: core.Server) -> core.ServerState:
        random = server.streams.torch("fedfa_anchors")
        classes, d = self.setting.num_classes, self.setting.feature_dim
        return {**super().init_server(server), "anchors": initial_anchors(classes, d, random)}

    def analyse(self, state: core.ServerState, server: core.Server) -> Analysis:
        return similarity_analysis(state["anchors"])

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        loss = super().loss(output, batch, local)
        term = anchor_loss(output.features, batch.labels, local.down.anchors)
        return loss + self.lambda_ * term

    def train(self, local: LocalContext) -> Trained:
        """Train, and calibrate the head after every batch."""
        step = calibration(local.model.head, local.down.anchors, self.calibration_lr)
        calibrate = step if self.calibration_lr else None
        return core.fit(local, self.batch_loss(local), after_batch=calibrate)

    def observe(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> None:
        """Note the means of a batch's classes; move the local anchors after every epoch."""
        notes, batches = local.notes, local.notes.setdefault("batches", [])
        anchors = notes.setdefault("anchors", local.down.anchors)
        batches.append(core.row_means(output.features.float(), batch.labels, len(anchors)))
        if len(batches) == len(core.batch_sizes(len(local.client.train), self.setting.training)):
            notes["anchors"] = moved_anchors(anchors, batches, self.anchor_momentum)
            batches.clear()

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        upload, state = super().finish(local, trained)
        return {**upload, "anchors": local.notes.get("anchors", local.down.anchors)}, state


def initial_anchors(classes: int, d: int, random: torch.Generator) -> Tensor:
    """Return unit vectors [C, d]: random basis vectors, or random directions if C > d."""
    if classes > d:
        return F.normalize(torch.randn(classes, d, generator=random), dim=1)
    return torch.eye(d)[torch.randperm(d, generator=random)[:classes]]


def anchor_loss(features: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Return 1/C * sum_b ||f_b - a_{y_b}||² / n_{y_b}; n_c counts the batch's images of class c.

    Features f are [B, d], labels y [B], anchors a [C, d].
    """
    counts = F.one_hot(labels, len(anchors)).sum(dim=0)
    distances = (features.float() - anchors[labels]).square().sum(dim=1)
    return (distances / counts[labels]).sum() / len(anchors)


def calibration(head: nn.Module, anchors: Tensor, lr: float) -> Callable[[], None]:
    """Return a step that trains a head to classify anchors a [C, d]: CE(h(a_c), c) over C classes.

    Adam, with this learning rate, changes the head in place. The step clears the head's gradients
    before and after.
    """
    adam = torch.optim.Adam(head.parameters(), lr)
    classes = torch.arange(len(anchors), device=anchors.device)

    def step() -> None:
        adam.zero_grad()
        F.cross_entropy(head(anchors), classes).backward()  # type: ignore[no-untyped-call]
        adam.step()
        adam.zero_grad()

    return step


def moved_anchors(
    anchors: Tensor, batches: Sequence[tuple[Tensor, Tensor]], momentum: float
) -> Tensor:
    """Return the local anchors [C, d] after an epoch: momentum * e_c + (1 - momentum) * m_c.

    m_c is the sum, over the epoch's batches, of the mean feature of class c in the batch, divided
    by the number of batches, which shrinks the means of rare classes, as in the official code.
    Anchors of classes that the epoch does not contain stay. `batches` are the mean features [C, d],
    zero without images, and the counts [C] of each batch.
    """
    sums, counts = (sum(parts) for parts in zip(*batches, strict=True))
    moved = momentum * anchors + (1 - momentum) * sums / len(batches)
    return torch.where(counts.unsqueeze(1) > 0, moved, anchors)
