"""FedETF: features align with the corners of a fixed simplex, in place of a classifier.

Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with
Synthetic and Fixed Classifier", ICCV 2023, arXiv:2303.10058.

    ETF classifier -> simplex_etf
    balanced loss  -> balanced_loss

The simplex is sent once, before the first round. The scale s is learnt beside the model, by the
same SGD, and averaged with it. FedETF-Per, the paper's fine-tuning, is not part of it.

Deviations:
    - The features themselves are normalised, so `model.feature_dim` must be C; the official code
      has a linear layer to C in between. `model.projector` gives one of two layers.
    - P is the identity, not a random rotation: our features are not negative, and of a rotated
      simplex such features may not reach every corner. `rotate` is the official code's choice.
    - Predictions leave out s, which scales all logits of an image alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.base import Exchange, Server, ServerState
from fedray.algorithms.fedavg import FedAvg, GlobalModel
from fedray.algorithms.fedlc import COUNTS, class_counts
from fedray.algorithms.prototypes import cosine_matrix
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState, LocalTraining
from fedray.comm import Payload, travels
from fedray.errors import UserError
from fedray.models import Classifier, ClassifierOutput

SIMPLEX = "simplex"
SCALE = "etf.scale"


@dataclass(frozen=True)
class Simplex(Payload):
    """M^T: the classes' unit vectors [C, C]."""

    vectors: Tensor = travels("prototypes", "C d")


@algorithms.add
class FedETF(FedAvg):
    """FedAvg of feature extractors under a fixed simplex; clients remember their class counts."""

    name = "fedetf"
    paper = "Li et al., ICCV 2023, arXiv:2303.10058"
    shares = "feature extractors and a scale; the simplex once"
    has_head = False

    class HParams(FedAvg.HParams):
        """FedETF's hyper-parameters."""

        scale: float = Field(1.0, gt=0)
        """s before the first round: the logits are s times cosines. Official code: 1."""
        learn_scale: StrictBool = True
        """Learn s and average it (paper); false keeps it, and nothing of it travels."""
        rotate: StrictBool = False
        """P is a random rotation (official code); false: the identity."""

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The initial weights, and s.

        Raises:
            UserError: when the features are not as wide as there are classes.
        """
        classes, d = self.setting.num_classes, self.setting.feature_dim
        if d != classes:
            raise UserError(
                f"fedetf needs features as wide as there are classes, but model.feature_dim={d} "
                f"and the data has {classes} classes; set model.feature_dim={classes}"
            )
        weights = super().init_server(server)
        if not self.hp.learn_scale:
            return weights
        return {**weights, SCALE: torch.tensor(float(self.hp.scale))}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Send the simplex to everybody, once."""
        basis = torch.eye(self.setting.num_classes, dtype=torch.float64)
        if self.hp.rotate:
            random = exchange.server.streams.torch("fedetf")
            draw = torch.randn(basis.shape, generator=random, dtype=basis.dtype)
            basis = torch.linalg.qr(draw).Q
        simplex = Simplex(simplex_etf(basis).float())
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

    def client_update(
        self, client: Client, state: ClientState, down: GlobalModel
    ) -> tuple[Payload | None, ClientState]:
        """Train the extractor and, beside it, s."""
        if not self.hp.learn_scale:
            return super().client_update(client, state, down)
        model = client.load(self.start(client, state, down))
        scale = down.weights[SCALE].to(client.device, copy=True)
        learn_beside(scale, self.setting.training)
        live = ClientState(state.model, {**state.memory, SCALE: scale})
        client.fit(model, lambda m, batch: self.local_loss(m, batch, down, live))
        sent = self.uplink(client, model, down)
        sent = replace(sent, weights={**sent.weights, SCALE: scale.detach()})
        return sent, self.keep(client, model, state)

    def start(self, client: Client, state: ClientState, down: GlobalModel) -> Mapping[str, Tensor]:
        """The global model without s, which is no tensor of the model."""
        weights = super().start(client, state, down)
        return {name: tensor for name, tensor in weights.items() if name != SCALE}

    def supervised_loss(
        self, output: ClassifierOutput, labels: Tensor, state: ClientState
    ) -> Tensor:
        """The balanced loss of s times the cosines with the simplex."""
        cosines = cosine_matrix(output.features, state.memory[SIMPLEX].to(labels.device))
        scale = state.memory.get(SCALE, self.hp.scale)  # there only while it learns
        return balanced_loss(scale * cosines, labels, state.memory[COUNTS])

    def predict(self, model: Classifier, images: Tensor, state: ClientState) -> Tensor:
        """The cosines [B, C] with the simplex, without the classes' prior."""
        return cosine_matrix(model(images).features, state.memory[SIMPLEX].to(images.device))


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


def balanced_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy of logits + log n_i, where a class without images counts as one image.

    Args:
        logits: [B, C].
        labels: y [B].
        counts: n_i [C]; equal counts give the plain cross-entropy.
    """
    prior = counts.clamp_min(1).float().log()
    return F.cross_entropy(logits + prior.to(logits.device), labels)


def learn_beside(tensor: Tensor, knobs: LocalTraining) -> None:
    """Make a tensor learn by the model's SGD: it steps as soon as a backward pass reaches it."""
    tensor.requires_grad_()
    sgd = torch.optim.SGD(
        [tensor], knobs.lr, momentum=knobs.momentum, weight_decay=knobs.weight_decay
    )

    def step(_: Tensor) -> None:
        sgd.step()
        sgd.zero_grad()

    tensor.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
