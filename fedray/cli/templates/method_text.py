"""NewMethod: federated averaging whose image features are guided by the classes' texts.

Replace the guidance by your own idea. Run the method with

    fedray run fedglcl_digits --plugin new_method.py algorithm=new_method

The server encodes one text per class once, with the language model of the key `text.encoder`, and
gives the vectors to every client. docs/hooks.md of fedray lists all methods that you can override.

    Eq. (1) -> guidance
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.plugin import (
    Batch,
    ClassifierOutput,
    Exchange,
    FedAvg,
    LocalContext,
    LossWeight,
    Requires,
    Server,
    ServerState,
    gift,
    method,
    sent,
)


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(FedAvg):  # inherits the rest from FedAvg: what travels, and averaging
    """FedAvg whose image features are guided by the classes' texts."""

    requires = Requires(text=True)  # the server then has a text tower, `server.tower`
    keep_text = gift(text=sent("text_embeddings", "the classes' names", "C d"))
    """A gift that clients keep: T, unit vectors of the classes' texts [C, d]."""

    lambda_: LossWeight = 1.0  # the key is `algorithm.lambda`
    """λ, weight of the guidance; 0 gives FedAvg."""
    tau: float = Field(0.1, gt=0)
    """τ, temperature of the guidance."""

    def init_server(self, server: Server) -> ServerState:
        """Return FedAvg's state and T. `server.tower` has the texts and their frozen encoder."""
        text = server.tower.frozen_prototypes(of_unit_length=True)
        server.check_width(text)  # model.feature_dim must be the encoder's width
        return {**super().init_server(server), "text": text}

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Give T to each client once, also to those that fail or join later."""
        text = self.keep_text.down(state["text"])
        return exchange.give(state, "keep_text", dict.fromkeys(range(self.setting.clients), text))

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the loss of one batch: the cross-entropy of FedAvg plus λ times the guidance.

        `output` contains features [B, d] and logits [B, C]; `local.state.memory` contains the
        client's gifts by the names of their fields.
        """
        guided = guidance(output.features, batch.labels, local.state.memory["text"], self.tau)
        return super().loss(output, batch, local) + self.lambda_ * guided


def guidance(features: Tensor, labels: Tensor, text: Tensor, tau: float) -> Tensor:
    """Return the mean of -log softmax_y(cos(f, T_j) / tau) over a batch; Eq. (1).

    Args:
        features: f, image features [B, d].
        labels: y, classes [B].
        text: T, unit vectors [C, d].
        tau: temperature.
    """
    cosines = F.normalize(features, dim=1) @ text.T
    return F.cross_entropy(cosines / tau, labels)
