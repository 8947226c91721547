"""FedGLCL: one image encoder, trained by contrast with frozen text embeddings of the classes.

Yan et al., "On the Importance of Language-driven Representation Learning for Heterogeneous
Federated Learning", ICLR 2025.

    Eq. (6) -> cosines
    Eq. (7) -> text_contrast

The text embeddings T are given once, before the first round; the model has no classifier. In
FedGLCL-L (`fedglcl_l`, Table 4) the clients train the text encoder too. With a U-Net every pixel is
a sample: its V features are aligned with T, and the loss is the mean over pixels (Table 19).

Deviations:
    - The positive is in the denominator of Eq. (7), as in the official code and as the paper's
      theory needs it (InfoNCE); `denominator: negatives` is the equation as printed. Both are
      minimised in the same direction: l_CE = softplus(l_7).
    - V, the width of the text embeddings, is the encoder's, and `model.feature_dim` must say so.
      The paper's "Bert-base" of width 640 is ALIGN's text tower in the code.
    - Clients weigh n_k/n, as Eq. (1); the official code gives Office's four domains a quarter each
      (`weights=uniform`).
    - The sentence around a class's name is the official code's "a photo of a {class}"
      (`text.style=plain`); the paper also prints "a photo of {class}".
    - FedGLCL-L: which part of the text encoder learns, its start and its rate are not stated. Here
      it starts from the pre-trained encoder and learns by the model's optimiser, no dropout; so
      before round 1 it is FedGLCL. `blocks` says how much of it: all, as Table 4 reads, its last
      blocks, or (0, the default) none of it, but a linear layer V to V behind it, from the
      identity. What lies below stays frozen and is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.averaging.extra_parameters import ExtraParameters
from fedray.algorithms.averaging.fedavg import FedAvg, GlobalModel
from fedray.algorithms.losses import cosine_matrix, softmax_loss
from fedray.config import Temperature
from fedray.core import (
    Batch,
    Exchange,
    LocalContext,
    Payload,
    PayloadTypes,
    Requires,
    Server,
    ServerState,
    algorithms,
    payload_field,
)
from fedray.language.trainable import TowerShape, class_embeddings
from fedray.models import ClassifierOutput

Denominator = Literal["all", "negatives"]
WEIGHT, BIAS = "text_projection.weight", "text_projection.bias"


Blocks = Annotated[int, Field(ge=0, le=1000)] | Literal["all"]


OF_NAMES = "nothing about clients: embeddings of the classes' names"


@dataclass(frozen=True)
class TextTowerInputs(Payload):
    """Inputs of the text encoder's blocks that learn: outputs of those below, or words."""

    hidden: Tensor = payload_field("text_embeddings", "texts tokens w", reveals=OF_NAMES)
    words: Tensor = payload_field("statistics", "texts tokens", dtype=torch.int64)
    mask: Tensor = payload_field("statistics", "texts tokens", dtype=torch.bool)
    shape: Tensor = payload_field("statistics", "numbers", dtype=torch.float64)


@dataclass(frozen=True)
class TextEmbeddings(Payload):
    """T: the classes' text embeddings [C, V], of unit length."""

    text: Tensor = payload_field("text_embeddings", "C d", reveals=OF_NAMES)


@algorithms.add
class FedGLCL(FedAvg):
    """FedAvg of image encoders that are trained against text embeddings."""

    name = "fedglcl"
    title = "FedGLCL"
    paper = "Yan et al., ICLR 2025"
    travels = "image encoders; text embeddings once"
    one_model = True
    requires = Requires(text=True, head=False)
    dense = True
    stacks = True
    downloads: ClassVar[PayloadTypes] = (GlobalModel, TextEmbeddings)

    class HParams(FedAvg.HParams):
        tau: Temperature = 0.07
        """τ of Eq. (7), temperature. Paper: 0.07; Fig. 4 sweeps 0.01 to 1."""
        denominator: Denominator = "all"
        """Eq. (7)'s sum: over all classes (code), or over the negatives alone (as printed)."""

    hp: HParams

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights and T.

        Raises:
            UserError: if the encoder's width is not the features'.
        """
        text = server.tower.frozen_prototypes(of_unit_length=True)
        server.check_width(text)
        return {**super().init_server(server), "text": text}

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Give T to all clients, also to those that join later: they are tested before."""
        text = TextEmbeddings(state["text"])
        return exchange.give(state, "text", dict.fromkeys(range(self.setting.clients), text))

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the contrast of images with texts, Eq. (7)."""
        delta = cosines(output.features, self.text(local))
        return text_contrast(delta, batch.labels, self.hp.tau, self.hp.denominator)

    def predict(self, output: ClassifierOutput, local: LocalContext) -> Tensor:
        """Return the cosines; the largest names the class."""
        return cosines(output.features, self.text(local))

    def text(self, local: LocalContext) -> Tensor:
        """Return T [C, V] as the client has it now."""
        vectors: Tensor = local.state.memory["text"]
        return vectors


@algorithms.add
class FedGLCLTrainedText(FedGLCL, ExtraParameters):
    """FedGLCL-L: every client trains the text encoder, or its end, too (FedGLCL Table 4).

    Cost: a block of BERT-base has 7.1 million parameters (28 MB up and as many down for
    every client and round), the whole tower 86 million (340 MB) without the words that no text has.
    Every batch takes all classes' texts forward and backward through what learns.
    """

    name = "fedglcl_l"
    title = "FedGLCL-L"
    paper = FedGLCL.paper
    travels = "image encoders and what learns of the text encoder; text embeddings once"
    one_model = True
    uploads = ExtraParameters.uploads
    downloads = (*ExtraParameters.downloads, TextEmbeddings, TextTowerInputs)
    requires = Requires(text=True, head=False)

    class HParams(FedGLCL.HParams):
        """FedGLCL's, and how much of the text encoder learns."""

        blocks: Blocks = 0
        """How many of the text encoder's last blocks learn (with its projection, where it has
        one), or all, embeddings included; 0: a linear layer behind it. For minilm, bert, align."""

    hp: HParams

    def extra_parameters(self) -> dict[str, Tensor]:
        """Return the projection [V, V] and its bias [V]: the identity."""
        width = self.setting.feature_dim
        return {WEIGHT: torch.eye(width), BIAS: torch.zeros(width)}

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights, and those of the text encoder's that learn.

        Raises:
            UserError: when the encoder cannot be trained in part.
        """
        state = super().init_server(server)
        if self.hp.blocks == 0:
            return state
        tower = server.tower.trainable(None if self.hp.blocks == "all" else self.hp.blocks)
        whole = tower.start.dim() == 2  # words; else outputs of the blocks below
        inputs = {
            "hidden": torch.zeros(*tower.mask.shape, 1) if whole else tower.start,
            "words": tower.start if whole else torch.zeros_like(tower.mask).long(),
            "mask": tower.mask,
            "shape": tower.shape.numbers(),
        }
        return {**state, "extra": dict(tower.tensors), "inputs": inputs}

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Give T to all clients, and the inputs of the blocks that learn."""
        state = super().give(state, exchange)
        if self.hp.blocks == 0:
            return state
        inputs = TextTowerInputs(**state["inputs"])
        return exchange.give(state, "inputs", dict.fromkeys(range(self.setting.clients), inputs))

    def text(self, local: LocalContext) -> Tensor:
        """Return T [C, V] through the trained part, computed for every batch."""
        if self.hp.blocks != 0:
            memory = local.state.memory
            source = "hidden" if memory["hidden"].shape[2] > 1 else "words"
            start, mask = (memory[name] for name in (source, "mask"))
            return class_embeddings(local.extra, start, mask, TowerShape.of(memory["shape"]))
        weight, bias = local.extra[WEIGHT], local.extra[BIAS]
        return F.linear(super().text(local), weight, bias)


def cosines(features: Tensor, text: Tensor) -> Tensor:
    """Return delta_j = cos(I, T_j) [B, C] of features I [B, V] and texts T [C, V], Eq. (6)."""
    return cosine_matrix(features, text)


def text_contrast(delta: Tensor, labels: Tensor, tau: float, denominator: Denominator) -> Tensor:
    """Return -log(e^{delta_y/tau} / sum_j e^{delta_j/tau}), mean over the batch, Eq. (7).

    Args:
        delta: cosines [B, C].
        labels: y [B].
        tau: temperature.
        denominator: "all" sums over every class, "negatives" over j != y (may be negative).
    """
    return softmax_loss(delta / tau, labels, exclude_target=denominator == "negatives")
