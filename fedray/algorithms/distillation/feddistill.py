"""FedDistill: clients learn from the mean outputs of all clients on each class.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018, arXiv:1811.11479.

    Algorithm 1, device: mean output of every label -> FedDistill.observe, FedDistill.finish
    Algorithm 1, device: loss with regulariser      -> distillation_loss
    Algorithm 1, server: teachers                   -> by_class, class_average (mean.py)

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

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray import core
from fedray.algorithms.mean import by_class
from fedray.algorithms.prototypes.class_prototypes import CLASS_FEATURES, ClassAveraging
from fedray.core import Batch, ClassifierOutput, LocalContext


@core.method("feddistill", "FedDistill", "Jeong et al., 2018, arXiv:1811.11479")
class FedDistill(ClassAveraging):
    """Distillation from the clients' mean outputs on each class; models stay personal."""

    version = 2  # means over clients in double precision
    proto_agg: ClassVar = "uniform"
    down = {
        "vectors": core.sent(
            "logits", "mean outputs on a class over its clients, which may be one", "C C"
        ),
    }
    up = {
        "classes": CLASS_FEATURES["classes"],
        "vectors": core.sent(
            "logits", "with which classes its model confuses its own", "c C", combine=by_class
        ),
    }

    gamma: core.LossWeight = 1.0
    """γ, weight of the distillation; 0 gives Local. FedTSP's comparison: 1."""

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        loss, targets = super().loss(output, batch, local), F.softmax(local.down.vectors, dim=1)
        present = local.down.present
        return loss + self.gamma * distillation_loss(output.logits, batch.labels, targets, present)

    def observe(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> None:
        """Add the outputs of a batch to the sums of their classes, and count them."""
        labels, notes = batch.labels, local.notes
        sums = notes.setdefault("sums", torch.zeros_like(local.down.vectors))
        counts = notes.setdefault("counts", labels.new_zeros(len(sums)))
        sums.index_add_(0, labels, output.logits.float())
        counts.index_add_(0, labels, torch.ones_like(labels))

    def finish(self, local: LocalContext, trained: core.Trained) -> core.StepResult:
        """Upload the mean output of the training batches on each class."""
        _, state = super().finish(local, trained)
        sums, counts = local.notes["sums"], local.notes["counts"]
        held = counts.nonzero().squeeze(1)
        return {"classes": held, "vectors": sums[held] / counts[held].unsqueeze(1)}, state


def distillation_loss(logits: Tensor, labels: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    """Return the mean cross-entropy of the outputs with the teachers of the images' classes.

    `targets` are the teachers' probabilities [C, C]. An image whose class has no teacher, which is
    not `present` [C], counts as zero.
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    losses = -(targets[labels] * log_p).sum(1)
    return (losses * present.to(log_p)[labels]).mean()
