"""FedETF: a linear layer's outputs align with the corners of a fixed simplex.

Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with
Synthetic and Fixed Classifier", ICCV 2023, arXiv:2303.10058.

    ETF classifier -> simplex_etf
    balanced loss  -> balanced_loss
    local fine-tuning (FedETF-Per) -> FedETF.fine_tune

The model's head is the official code's `linear_proto`, from the features to C numbers. The simplex
is sent once, before the first round. The scale s is an extra parameter: the model's optimiser
trains it, and the server averages it like the weights.

FedETF-Per: with `finetune_epochs` > 0 every client first trains the whole model as in a round. The
client then alternates `finetune_epochs` times between training its copy of the simplex (which is no
longer an ETF afterwards) and training the head, both on the plain cross-entropy.

Deviations:
    - Every round begins with a new optimiser. The official code keeps each client's momentum for
      the whole run, which changed weights by 0.039 and accuracies by 8.7 points.
    - Normalisation layers keep their running statistics while simplex and head are fine-tuned, as
      in all fine-tuning here; the official code updates them.

Buffers: as in FedAvg.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import ExtraParameters
from fedray.core import Batch, ClassifierOutput, LocalContext
from fedray.models import head_tensors


@core.method("fedetf", "FedETF", "Li et al., ICCV 2023, arXiv:2303.10058")
class FedETF(ExtraParameters):
    """FedAvg with a fixed simplex (ETF) as classifier, and a loss balanced by class counts."""

    version = 2  # predicts with s
    one_model = True
    keep_simplex: ClassVar = core.gift(
        simplex=core.sent("prototypes", "nothing: a random rotation of a fixed simplex", "C C")
    )

    scale: float = Field(1.0, gt=0, le=1e6)
    """s, initial value of the scale; the logits are s times cosines. Official code: 1."""
    per_epochs: core.Epochs = 3
    """FedETF-Per: epochs on the simplex, and on the head, per alternation. Official code: 3."""
    per_simplex_lr: core.LearningRate = 0.1
    """FedETF-Per: learning rate of the simplex, which plain SGD trains. Official code: 0.1."""
    per_head_lr: core.LearningRate = 0.05
    """FedETF-Per: learning rate of the head, which the experiment's optimiser trains. Official
    code: 0.05, with momentum 0.9 and weight decay 5e-4."""

    def extra_parameters(self) -> dict[str, Tensor]:
        """Return the scale s."""
        return {"scale": torch.tensor(float(self.scale))}

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the initial weights and scale, and a randomly rotated simplex."""
        classes, random = self.setting.num_classes, server.streams.torch("fedetf")
        draw = torch.randn(classes, classes, generator=random, dtype=torch.float64)
        simplex = simplex_etf(torch.linalg.qr(draw).Q).float()
        return {**super().init_server(server), "simplex": simplex}

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        return balanced_loss(self.predict(output, local), batch.labels, local.client.class_counts)

    def predict(self, output: ClassifierOutput, local: LocalContext) -> Tensor:
        """Return s times the cosines [B, C], without log n_i; a trained s may be negative."""
        return corner_products(output.logits, local.state.memory["simplex"]) * local.extra["scale"]

    def fine_tune(self, local: LocalContext) -> Iterator[LocalContext]:
        """Train locally for a round, then the simplex and the head in turn (FedETF-Per).

        Yields:
            The context with the client's simplex, after each of the `finetune_epochs` alternations.
        """
        client, epochs = local.client, self.per_epochs
        self.train(replace(local, client=client.with_schedule(1, lr=self.setting.training.lr)))

        def loss(batch: Batch) -> Tensor:
            logits = self.predict(local.model(batch.inputs), local)
            return F.cross_entropy(logits, batch.labels)

        sgd = {"lr": self.per_simplex_lr, "optimizer": core.PLAIN_SGD}
        for turn in range(2, 2 + 2 * self.setting.finetune_epochs, 2):
            simplex = {"simplex": local.state.memory["simplex"].clone()}
            local = replace(local, state=local.state.with_memory(**simplex))
            tuned = replace(local, client=client.with_schedule(turn, epochs=epochs, **sgd))
            core.fit(replace(tuned, extra=simplex, trainable=()), loss)
            own = client.with_schedule(turn + 1, epochs=epochs, lr=self.per_head_lr)
            head = head_tensors(local.model)
            core.fit(replace(local, client=own, extra={}, trainable=head), loss)
            yield local


def simplex_etf(basis: Tensor) -> Tensor:
    """Return M^T [C, C] of M = sqrt(C/(C-1)) P (I - 11^T/C), for an orthonormal matrix P [C, C].

    Row c is the vector of class c; the vectors have unit length and cosines -1/(C-1).
    """
    classes = len(basis)
    centred = torch.eye(classes, dtype=basis.dtype) - 1 / classes
    vectors: Tensor = math.sqrt(classes / (classes - 1)) * (basis @ centred).T
    return vectors


def corner_products(outputs: Tensor, simplex: Tensor) -> Tensor:
    """Return f^T M [B, C] of the normalised outputs f [B, C]; cosines if M has unit columns."""
    with torch.autocast(outputs.device.type, enabled=False):  # autocast would multiply in bfloat16
        return F.normalize(outputs.float(), dim=1, eps=1e-8) @ simplex.T


def balanced_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return the cross-entropy of logits [B, C] + log n_i with the labels y [B].

    n_i [C] are class counts; a class without images counts as one image. Equal counts give the
    plain cross-entropy.
    """
    prior = counts.clamp_min(1).float().log()
    return F.cross_entropy(logits + prior, labels)
