"""FedDistill: clients learn from the mean outputs of all clients on each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018, arXiv:1811.11479.

    Algorithm 1, device: mean output of every label -> ClassSums.means
    Algorithm 1, device: loss with regulariser      -> distillation_loss
    Algorithm 1, server: teachers                   -> FedDistill.server_update

As in the paper, outputs are collected during training, while the weights change, and the mean over
clients has equal weights. The paper's augmentation by a generative model is not implemented.

Deviations:
    - Logits are averaged, and the softmax of their mean is the teacher, as in FedTSP's comparison;
      the paper averages the outputs of the softmax.
    - A client's teacher is the mean over all clients that hold the class, including itself, as in
      FedTSP's comparison; the paper excludes the client's own outputs.
    - A class without uploads keeps its teacher. The code of FedTSP's comparison drops the teacher;
      in the paper all clients take part in every round.
    - An image whose class has no teacher adds nothing to the loss. The code of FedTSP's comparison
      uses the client's own output as teacher, which has no gradient either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import row_means
from fedray.algorithms.prototypes.class_prototypes import with_latest
from fedray.config import LossWeight
from fedray.models import ClassifierOutput


@core.method("feddistill", "FedDistill", "Jeong et al., 2018, arXiv:1811.11479")
class FedDistill(core.LocalTraining):
    """Distillation from the clients' mean outputs on each class; models stay personal."""

    version = 2  # means over clients in double precision
    down: ClassVar[Any] = {
        "outputs": core.sent(
            "logits",
            "the mean outputs of the clients' models on every class; if one client alone holds a "
            "class, its own outputs",
            axes="C C",
        ),
        "present": core.sent("statistics", axes="C", dtype=torch.bool),
    }
    up = {
        "classes": core.sent(
            "statistics", "which classes the client holds", axes="c", dtype=torch.int64
        ),
        "outputs": core.sent(
            "logits", "which other classes its model confuses each of its classes with", axes="c C"
        ),
    }

    gamma: LossWeight = 1.0
    """γ, weight of the distillation; 0 gives Local. FedTSP's comparison: 1."""

    def init_server(self, server: core.Server) -> core.ServerState:
        classes = server.setting.num_classes
        absent = torch.zeros(classes, dtype=torch.bool)
        return {"vectors": torch.zeros(classes, classes), "present": absent}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        return dict.fromkeys(clients, self.down(state["vectors"], state["present"]))

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Return the unweighted mean of the uploads; classes without uploads keep their teacher."""
        if not uplinks:
            return state
        outputs = torch.cat([upload.outputs for upload in uplinks.values()])
        classes = torch.cat([upload.classes for upload in uplinks.values()])
        means, holders = row_means(outputs.double(), classes, self.setting.num_classes)
        return with_latest(state, means.float(), holders > 0)

    def loss(self, output: ClassifierOutput, batch: core.Batch, local: core.LocalContext) -> Tensor:
        loss = super().loss(output, batch, local)
        if self.gamma == 0:
            return loss
        targets = F.softmax(local.down.outputs, dim=1)
        term = distillation_loss(output.logits, batch.labels, targets, local.down.present)
        return loss + self.gamma * term

    def client_update(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[Any, core.ClientState]:
        """Train, and upload the mean outputs of the training batches."""
        local = self.begin(client, state, down)
        sums = ClassSums(self.setting.num_classes, client.device)

        def loss(batch: core.Batch) -> Tensor:
            output = local.model(batch.inputs)
            sums.add(output.logits.detach().float(), batch.labels)
            return self.loss(output, batch, local)

        _, next_state = self.finish(local, core.fit(local, loss))
        classes, outputs = sums.means()
        return {"classes": classes, "outputs": outputs}, next_state


class ClassSums:
    """Running sums of the outputs on each class.

    Args:
        classes: C.
        device: device of the outputs.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self._sums = torch.zeros(classes, classes, device=device)
        self._counts = torch.zeros(classes, dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Add the outputs [B, C] of a batch with labels [B]."""
        self._sums.index_add_(0, labels, outputs)
        # `bincount` would synchronise with a GPU.
        self._counts.index_add_(0, labels, torch.ones_like(labels))

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the classes with images [c], and the mean output on each of these [c, C]."""
        classes = self._counts.nonzero().squeeze(1)
        return classes, self._sums[classes] / self._counts[classes].unsqueeze(1)


def distillation_loss(logits: Tensor, labels: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    """Return the mean cross-entropy of the outputs with the teachers of the images' classes.

    Args:
        logits: z [B, C].
        labels: class labels [B]; an image whose class has no teacher counts as zero.
        targets: the teachers' probabilities [C, C].
        present: mask of the classes that have a teacher [C].
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    losses = -(targets[labels] * log_p).sum(1)
    return (losses * present.to(log_p)[labels]).mean()
