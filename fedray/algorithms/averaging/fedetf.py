"""FedETF: a linear layer's outputs align with the corners of a fixed simplex.

Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with
Synthetic and Fixed Classifier", ICCV 2023, arXiv:2303.10058.

    ETF classifier -> simplex_etf
    balanced loss  -> balanced_loss
    local fine-tuning (FedETF-Per) -> FedETF.finetuning

The model's head is the official code's `linear_proto`, from the features to C numbers. The simplex
is sent once, before the first round. The scale s is learnt beside the model, by the same SGD, and
averaged with it.

FedETF-Per: with `finetune_epochs` > 0 every client first trains the whole model as in a round, then
alternates so many times between epochs of its own simplex, which is none afterwards, and epochs of
the head, both under the plain cross-entropy.

Deviations:
    - Predictions leave out s, which scales all logits of an image alike.
    - Normalisation keeps its statistics while simplex and head are fine-tuned, as in every
      fine-tuning here; the official code lets them run.

Buffers: as in FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.base import Exchange, ServerState
from fedray.algorithms.beside import LearnsBeside, learn_beside
from fedray.algorithms.fedavg import FedAvg
from fedray.algorithms.fedlc import COUNTS, class_counts
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.comm import Payload, travels
from fedray.models import Classifier, ClassifierOutput, head_tensors

SIMPLEX = "simplex"
SCALE = "etf.scale"


@dataclass(frozen=True)
class Simplex(Payload):
    """M^T: the classes' unit vectors [C, C]."""

    vectors: Tensor = travels("prototypes", "C C")


@algorithms.add
class FedETF(LearnsBeside):
    """FedAvg of models under a fixed simplex; clients remember it and their class counts."""

    name = "fedetf"
    paper = "Li et al., ICCV 2023, arXiv:2303.10058"
    shares = "whole models and a scale; the simplex once"

    class HParams(FedAvg.HParams):
        """FedETF's hyper-parameters."""

        scale: float = Field(1.0, gt=0)
        """s before the first round: the logits are s times cosines. Official code: 1."""
        learn_scale: StrictBool = True
        """Learn s and average it (paper); false keeps it, and nothing of it travels."""
        per_epochs: int = Field(3, ge=1)
        """FedETF-Per: epochs of each half of an alternation. Official code: 3."""
        per_simplex_lr: float = Field(0.1, gt=0)
        """FedETF-Per: learning rate of the simplex, plain SGD. Official code: 0.1."""
        per_head_lr: float = Field(0.05, gt=0)
        """FedETF-Per: learning rate of the head, with the experiment's momentum and weight decay.
        Official code: 0.05."""

    # --- server ----------------------------------------------------------------------------------

    def beside(self) -> dict[str, Tensor]:
        """The scale s, while it learns."""
        return {SCALE: torch.tensor(float(self.hp.scale))} if self.hp.learn_scale else {}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Send the simplex, randomly turned, to everybody, once."""
        classes = self.setting.num_classes
        random = exchange.server.streams.torch("fedetf")
        draw = torch.randn(classes, classes, generator=random, dtype=torch.float64)
        simplex = Simplex(simplex_etf(torch.linalg.qr(draw).Q).float())
        exchange.call("receive_simplex", dict.fromkeys(exchange.everyone, simplex))
        return state

    # --- client ----------------------------------------------------------------------------------

    def init_client(self, client: Client) -> ClientState:
        """As FedAvg, and the class counts n_i."""
        before = super().init_client(client)
        return ClientState(before.model, {**before.memory, COUNTS: class_counts(client)})

    def receive_simplex(
        self, client: Client, state: ClientState, down: Simplex
    ) -> tuple[None, ClientState]:
        """Keep the simplex."""
        return None, ClientState(state.model, {**state.memory, SIMPLEX: down.vectors})

    def supervised_loss(
        self, output: ClassifierOutput, labels: Tensor, state: ClientState
    ) -> Tensor:
        """The balanced loss of s times the cosines with the simplex."""
        return balanced_loss(self._logits(output, state), labels, state.memory[COUNTS])

    def finetuning(
        self, client: Client, model: Classifier, state: ClientState, down: Any
    ) -> Iterator[ClientState]:
        """FedETF-Per: a round of local training, then simplex and head in turn.

        Yields:
            After each of the `finetune_epochs` alternations, the state with the own simplex.
        """
        tuned = self.train(client.again(1), model, state, down)
        memory = {name: tensor.detach() for name, tensor in tuned.memory.items()}

        def loss(model: Classifier, batch: Batch) -> Tensor:
            return F.cross_entropy(self._logits(model(batch.images), live), batch.labels)

        for turn in range(self.setting.finetune_epochs):
            simplex = memory[SIMPLEX].to(client.device, copy=True)
            live = ClientState(tuned.model, {**memory, SIMPLEX: simplex})
            first = client.again(
                2 + 2 * turn,
                epochs=self.hp.per_epochs,
                lr=self.hp.per_simplex_lr,
                momentum=0.0,
                weight_decay=0.0,
            )
            learn_beside(simplex, first.setting.training)
            first.fit(model, loss, only=())
            simplex.requires_grad_(False)
            then = client.again(3 + 2 * turn, epochs=self.hp.per_epochs, lr=self.hp.per_head_lr)
            then.fit(model, loss, only=head_tensors(model))
            memory = {**memory, SIMPLEX: simplex}
            yield live

    def _logits(self, output: ClassifierOutput, state: ClientState) -> Tensor:
        cosines = corner_products(output.logits, state.memory[SIMPLEX])
        learnt = state.memory.get(SCALE)  # there only while it learns
        return cosines * (float(self.hp.scale) if learnt is None else learnt)

    def predict(self, model: Classifier, images: Tensor, state: ClientState) -> Tensor:
        """The cosines [B, C] with the simplex, without the classes' prior."""
        return corner_products(model(images).logits, state.memory[SIMPLEX])


def simplex_etf(basis: Tensor) -> Tensor:
    """M^T of M = sqrt(C/(C-1)) P (I - 11^T/C): unit vectors whose cosines are -1/(C-1).

    Args:
        basis: P [C, C], orthonormal.

    Returns:
        [C, C]; row c is the vector of class c.
    """
    classes = len(basis)
    centred = torch.eye(classes, dtype=basis.dtype) - 1 / classes
    vectors: Tensor = math.sqrt(classes / (classes - 1)) * (basis @ centred).T
    return vectors


def corner_products(outputs: Tensor, simplex: Tensor) -> Tensor:
    """f^T M [B, C] of the normalised outputs f [B, C]; cosines as long as M's columns are unit."""
    unit = F.normalize(outputs.float(), dim=1, eps=1e-8)
    return unit @ simplex.to(outputs.device).T


def balanced_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy of logits + log n_i, where a class without images counts as one image.

    Args:
        logits: [B, C].
        labels: y [B].
        counts: n_i [C]; equal counts give the plain cross-entropy.
    """
    prior = counts.clamp_min(1).float().log()
    return F.cross_entropy(logits + prior.to(logits.device), labels)
