"""FedDistill: clients learn from the mean class outputs of all, Federated Distillation.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018, arXiv:1811.11479.

    Algorithm 1, device: mean output of every label -> ClassSums.means
    Algorithm 1, device: loss with regulariser      -> distillation_loss
    Algorithm 1, server: teachers                   -> latest_rows, teachers

As the paper has it, outputs are those seen while training, under moving weights, and the mean over
devices has equal weights. The paper's augmentation by a generative model is not part of it.

Deviations:
    - Logits are averaged, and their softmax is the teacher, as in FedTSP's comparison; the paper
      averages the outputs of the softmax (`outputs=probabilities`).
    - A client's teacher is the mean over all that hold the class, itself included, as in that
      comparison; the paper leaves its own outputs out (`teacher=others`).
    - A class that nobody uploaded keeps its teacher; that comparison's code forgets it, and in the
      paper everybody takes part. An image whose class has no teacher adds nothing: the code takes
      the client's own output for it, which has no gradient either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.mean import row_means
from fedray.config import LossWeight
from fedray.core import (
    Batch,
    Client,
    ClientState,
    Downlinks,
    HyperParameters,
    LocalContext,
    LocalTraining,
    Payload,
    Server,
    ServerState,
    Tensors,
    Uplinks,
    algorithms,
    fit,
    payload_field,
)
from fedray.models import ClassifierOutput


@dataclass(frozen=True)
class ClassOutputs(Payload):
    """A client's mean outputs on the images of each class that it holds.

    Attributes:
        classes: class numbers [c].
        outputs: mean logits, or mean probabilities [c, C].
    """

    classes: Tensor = payload_field(
        "statistics", "c", dtype=torch.int64, reveals="which classes the client holds"
    )
    outputs: Tensor = payload_field(
        "logits", "c C", reveals="how its model mistakes each of its classes for the others"
    )


@dataclass(frozen=True)
class ClassTeachers(Payload):
    """The mean outputs of clients on each class.

    Attributes:
        outputs: mean logits, or mean probabilities [C, C]; rows of absent classes are zero.
        present: which classes have a teacher [C], bool.
    """

    outputs: Tensor = payload_field(
        "logits",
        "C C",
        reveals="the mean outputs of the clients' models on every class; of a class that one "
        "client holds, that client's own",
    )
    present: Tensor = payload_field("statistics", "C", dtype=torch.bool)


@algorithms.add
class FedDistill(LocalTraining):
    """Mean class outputs up and down; models stay personal."""

    name = "feddistill"
    title = "FedDistill"
    paper = "Jeong et al., 2018, arXiv:1811.11479"
    travels = "mean class outputs"
    uploads = (ClassOutputs,)
    downloads = (ClassTeachers,)

    class HParams(HyperParameters):
        gamma: LossWeight = 1.0
        """γ, weight of the distillation; 0 is Local. FedTSP's comparison: 1."""
        outputs: Literal["logits", "probabilities"] = "logits"
        """Averaged outputs: logits, whose softmax teaches (FedTSP's comparison), or the outputs of
        the softmax (paper)."""
        teacher: Literal["all", "others"] = "all"
        """The teacher of a client: the mean of all that hold the class (FedTSP's comparison), or of
        the others alone (paper); then a single client is Local."""

    hp: HParams

    def init_server(self, server: Server) -> ServerState:
        nobody = torch.zeros(0, dtype=torch.int64)
        outputs = torch.zeros(0, server.setting.num_classes)
        return {"owners": nobody, "classes": nobody.clone(), "outputs": outputs}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Send the teachers: the same to all, or to each client those of the others."""
        everyone = torch.ones_like(state["owners"], dtype=torch.bool)
        if self.hp.teacher == "all":
            return dict.fromkeys(clients, teachers(state, everyone))
        return {client: teachers(state, state["owners"] != client) for client in clients}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Take over the uploads; classes without any keep their rows."""
        return latest_rows(state, uplinks) if uplinks else state

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        loss = super().loss(output, batch, local)
        teachers: ClassTeachers = local.down
        if self.hp.gamma == 0:
            return loss
        outputs = teachers.outputs
        known = outputs if self.hp.outputs == "probabilities" else F.softmax(outputs, dim=1)
        term = distillation_loss(output.logits, batch.labels, known, teachers.present)
        return loss + self.hp.gamma * term

    def client_update(
        self, client: Client, state: ClientState, down: Any
    ) -> tuple[ClassOutputs, ClientState]:
        """Train, and upload the mean outputs seen on the way."""
        local = self.begin(client, state, down)
        seen = ClassSums(self.setting.num_classes, client.device)

        def loss(batch: Batch) -> Tensor:
            output = local.model(batch.inputs)
            logits = output.logits.detach().float()
            soft = self.hp.outputs == "probabilities"
            seen.add(F.softmax(logits, dim=1) if soft else logits, batch.labels)
            return self.loss(output, batch, local)

        _, kept = self.finish(local, fit(local, loss))
        return ClassOutputs(*seen.means()), kept


class ClassSums:
    """Sums of outputs class by class, while batches go by.

    Args:
        classes: C.
        device: where the outputs are.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self._sums = torch.zeros(classes, classes, device=device)
        self._counts = torch.zeros(classes, dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Take in the outputs [B, C] of a batch with labels [B]."""
        self._sums.index_add_(0, labels, outputs)
        self._counts.index_add_(0, labels, torch.ones_like(labels))  # `bincount` waits on a GPU

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the classes seen [c], and the mean output of the images of each [c, C]."""
        seen = self._counts.nonzero().squeeze(1)
        return seen, self._sums[seen] / self._counts[seen].unsqueeze(1)


def latest_rows(state: ServerState, uplinks: Uplinks) -> Tensors:
    """Return the rows of the uploads, and earlier rows of classes that no upload has.

    Args:
        state: the rows so far: owners [M], classes [M], outputs [M, C].
        uplinks: class outputs by client.
    """
    classes = torch.cat([upload.classes for upload in uplinks.values()])
    owners = torch.cat([torch.full_like(u.classes, client) for client, u in uplinks.items()])
    outputs = torch.cat([upload.outputs for upload in uplinks.values()])
    old = ~torch.isin(state["classes"], classes)
    return {
        "owners": torch.cat([state["owners"][old], owners]),
        "classes": torch.cat([state["classes"][old], classes]),
        "outputs": torch.cat([state["outputs"][old], outputs]),
    }


def teachers(state: ServerState, chosen: Tensor) -> ClassTeachers:
    """Return the mean of the chosen rows of each class, with equal weights.

    Args:
        state: the rows: owners [M], classes [M], outputs [M, C].
        chosen: which of them count [M], bool.
    """
    outputs = state["outputs"][chosen]
    means, holders = row_means(outputs, state["classes"][chosen], outputs.shape[1])
    return ClassTeachers(means, holders > 0)


def distillation_loss(logits: Tensor, labels: Tensor, known: Tensor, present: Tensor) -> Tensor:
    """Return the mean cross-entropy of the outputs with the teachers of the images' classes.

    Args:
        logits: z [B, C].
        labels: [B]; an image whose class has no teacher counts as zero.
        known: the teachers' probabilities [C, C].
        present: which classes have a teacher [C].
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    each = -(known[labels] * log_p).sum(1)
    return (each * present.to(log_p)[labels]).mean()
