"""FedFA: one anchor per class aligns the features and classifiers of all clients.

Zhou et al., "FedFA: Federated Learning with Feature Anchors to Align Features and Classifiers for
Heterogeneous Data", IEEE Transactions on Mobile Computing 2024, arXiv:2211.09299.

    anchor loss            -> anchor_loss
    classifier calibration -> Calibration
    local anchors          -> MovingAnchors
    global anchors         -> combined_rows, mean_of (core/sums.py)

The registered name contains "anchors" because another method is called FedFA too (feature
augmentation).

Deviations:
    - An anchor does not move in an epoch whose batches hold no image of its class (`drop_last`);
      the official code pulls the anchor to 0.
    - λ = 1 as in FedTSP's comparison (supplementary C.4); the official code uses 0.1.

Buffers: as in FedAvg.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.losses import similarity_analysis
from fedray.config import LossWeight
from fedray.evaluation.protocols import Analysis
from fedray.models import ClassifierOutput


@core.method("fedfa_anchors", "FedFA (anchors)", "Zhou et al., IEEE TMC 2024, arXiv:2211.09299")
class FedFAAnchors(FedAvg):
    """FedAvg of models and of one feature anchor per class; clients keep no state."""

    dense = False
    down = {
        "anchors": core.sent("prototypes", "the means of the participants' class features", "C d")
    }
    up = {  # a mean in double precision: an anchor that no client has moved stays bit for bit
        "anchors": core.sent(
            "prototypes",
            "which classes the client holds, by the anchors that moved, and their mean features",
            "C d",
            combine="mean",
        )
    }

    lambda_: LossWeight = 1.0
    """λ, weight of the anchor loss; 0 omits the loss. FedTSP's comparison: 1; official code:
    0.1."""
    calibration_lr: float = Field(0.001, ge=0, le=1e6)
    """Adam's learning rate in the calibration of the head; 0 omits the calibration. Official
    code: 0.001."""
    anchor_momentum: float = Field(0.5, ge=0, le=1)
    """Momentum of the anchors' moving mean over epochs; 1 fixes the anchors. Official code:
    0.5."""

    def init_server(self, server: core.Server) -> core.ServerState:
        random = server.streams.torch("fedfa_anchors")
        classes, d = self.setting.num_classes, self.setting.feature_dim
        return {**super().init_server(server), "anchors": initial_anchors(classes, d, random)}

    def analyse(self, state: core.ServerState, server: core.Server) -> Analysis:
        return similarity_analysis(state["anchors"])

    def loss(self, output: ClassifierOutput, batch: core.Batch, local: core.LocalContext) -> Tensor:
        loss = super().loss(output, batch, local)
        if self.lambda_ == 0:
            return loss
        anchors = local.down.anchors
        return loss + float(self.lambda_) * anchor_loss(output.features, batch.labels, anchors)

    def client_update(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[Any, core.ClientState]:
        """Train; calibrate the head after every batch, and move local anchors after every epoch."""
        local = self.begin(client, state, down)
        anchors, config = down.anchors, self.setting.training
        calibration = Calibration(local.model.head, anchors, self.calibration_lr)
        images = len(client.train)
        moving = MovingAnchors(
            anchors,
            images - images % config.batch_size if config.drop_last else images,
            self.anchor_momentum,
        )

        def loss(batch: core.Batch) -> Tensor:
            output = local.model(batch.inputs)
            moving.add(output.features, batch.labels)
            return self.loss(output, batch, local)

        trained = core.fit(local, loss, after_batch=calibration.step)
        update, next_state = self.finish(local, trained)
        return {**update, "anchors": moving.anchors}, next_state


def initial_anchors(classes: int, d: int, random: torch.Generator) -> Tensor:
    """Return unit vectors [C, d]: random basis vectors, or random directions if C > d."""
    if classes > d:
        return F.normalize(torch.randn(classes, d, generator=random), dim=1)
    return torch.eye(d)[torch.randperm(d, generator=random)[:classes]]


def anchor_loss(features: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Return 1/C * sum_b ||f_b - a_{y_b}||² / n_{y_b}; n_c counts the batch's images of class c.

    Args:
        features: f [B, d].
        labels: y [B].
        anchors: a [C, d].
    """
    counts = F.one_hot(labels, len(anchors)).sum(dim=0)
    distances = (features.float() - anchors[labels]).square().sum(dim=1)
    return (distances / counts[labels]).sum() / len(anchors)


class Calibration:
    """Training of the head, with Adam, to classify the anchors: CE(h(a_c), c) over all C classes.

    Args:
        head: `Linear(d, C)`, changed in place.
        anchors: a [C, d].
        lr: Adam's learning rate; 0 leaves the head unchanged.
    """

    def __init__(self, head: nn.Module, anchors: Tensor, lr: float) -> None:
        self.head = head
        self.anchors = anchors
        self.classes = torch.arange(len(anchors), device=anchors.device)
        self.adam = torch.optim.Adam(head.parameters(), lr) if lr else None

    def step(self) -> None:
        """Take one step; clear the head's gradients before and after."""
        if self.adam is None:
            return
        self.adam.zero_grad()
        loss = F.cross_entropy(self.head(self.anchors), self.classes)
        loss.backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        self.adam.zero_grad()


class MovingAnchors:
    """Local anchors that move after every epoch: e_c <- momentum * e_c + (1 - momentum) * m_c.

    m_c is the sum, over the epoch's batches, of the mean feature of class c in the batch, divided
    by the number of batches, which shrinks the means of rare classes, as in the official code.
    Anchors of classes that the epoch does not contain stay.

    Args:
        anchors: initial anchors e [C, d].
        images: number of images in an epoch.
        momentum: weight of the previous anchor.

    Attributes:
        anchors: current anchors e [C, d].
    """

    def __init__(self, anchors: Tensor, images: int, momentum: float) -> None:
        self.anchors = anchors
        self.images = images
        self.momentum = momentum
        self._begin()

    def _begin(self) -> None:
        self.images_added, self.batches = 0, 0
        self.sums = torch.zeros_like(self.anchors)
        self.holding = self.anchors.new_zeros(len(self.anchors), 1)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch of features [B, d] and labels [B]; move the anchors when an epoch ends."""
        features = features.detach().float()
        counts = F.one_hot(labels, len(self.anchors)).sum(dim=0).unsqueeze(1)
        sums = torch.zeros_like(self.sums).index_add_(0, labels, features)
        self.sums += sums / counts.clamp_min(1)
        self.holding += counts > 0
        self.images_added += len(labels)
        self.batches += 1
        if self.images_added == self.images:
            self._move()
            self._begin()

    def _move(self) -> None:
        anchors = self.momentum * self.anchors + (1 - self.momentum) * self.sums / self.batches
        self.anchors = torch.where(self.holding > 0, anchors, self.anchors)
