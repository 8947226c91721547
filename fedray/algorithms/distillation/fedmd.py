"""FedMD: clients of any architectures learn from their mean class scores on public images.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
arXiv:1910.03581. Authors' code: diogenes0319/FedMD_clean, commit ab7a07b (Keras; not run here).

    Algorithm 1, transfer learning       -> FedMD.transfer
    Algorithm 1, communicate             -> FedMD.communicate
    Algorithm 1, aggregate               -> consensus
    Algorithm 1, distribute, digest, revisit -> FedMD.digest, digest_loss

Class scores are logits, without softmax, as in the authors' code. The public images of a round are
drawn from a stream that server and clients share, so that their numbers need not travel.

Deviations:
    - Models classify the clients' classes only. The authors' models also classify the classes of
      the public images, which differ from the clients'; such images must be unlabelled here, with
      `public_epochs=0`.
    - Transfer learning has a fixed number of epochs; the authors' code stops it early, on test
      images.
    - The public images of a round are drawn uniformly; the authors' code draws the same share of
      every class.
    - One optimiser, the experiment's, serves all trainings; the authors' code has Adam with rate
      0.001, and with separate moments for public scores and private labels. `optimizer.keep=true`
      keeps one set of moments.
    - The paper does not state the loss of the digestion; it is the authors' code's by default.

Buffers: those of a client's model are its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.losses import kl_divergence
from fedray.config import Temperature
from fedray.errors import UserError


@dataclass(frozen=True)
class PublicScores(core.Payload):
    """A client's logits of the round's public images [p, C]."""

    logits: Tensor = core.payload_field(
        "logits", "p C", reveals="its model's outputs on public images (membership)"
    )


@dataclass(frozen=True)
class Consensus(core.Payload):
    """The mean logits of the round's public images [p, C].

    Attributes:
        logits: the mean over clients.
        temperature: the divisor of the logits in a softmax.
    """

    logits: Tensor = core.payload_field(
        "logits", "p C", reveals="the mean outputs of the participants' models on public images"
    )
    temperature: float = core.payload_field("statistics")


@core.algorithms.add
class FedMD(core.LocalTraining):
    """Personal models of any architecture, which learn from their mean scores of public images."""

    name = "fedmd"
    title = "FedMD"
    paper = "Li and Wang, NeurIPS 2019 workshop, arXiv:1910.03581"
    travels = "class scores of public images"
    requires = core.Requires(public=True)
    uploads = (PublicScores,)
    downloads = (Consensus,)
    stacks = False

    class HParams(core.HyperParameters):
        public_epochs: int = Field(20, ge=0, le=10_000)
        """Epochs of transfer learning on the labels of public images; 0: none. Authors' code: at
        most 20."""
        private_epochs: int = Field(25, ge=0, le=10_000)
        """Epochs of transfer learning on the client's images; 0: none. Authors' code: at most
        25."""
        alignment: int | None = Field(None, ge=1, le=1_000_000_000)
        """Public images of a round; null: all. Authors' code: 5,000."""
        digest_epochs: int = Field(1, ge=0, le=10_000)
        """Epochs of the digestion; 0 gives Local after transfer learning. Authors' code: 1."""
        digest_batch_size: int = Field(256, ge=1, le=1_000_000)
        """Public images of a step. Authors' code: 256, or 128 for unequal clients' classes."""
        digest: Literal["l1", "kl"] = "l1"
        """Loss of the digestion: l1, mean absolute difference of logits (authors' code), or kl, the
        divergence of softmaxes."""
        temperature: Temperature = 1.0
        """Divisor of logits in kl."""

    hp: HParams

    def init_server(self, server: core.Server) -> core.ServerState:
        """Check the public images.

        Raises:
            UserError: if they lack the labels that `public_epochs` needs, or are too few.
        """
        if self.hp.public_epochs and not server.public.is_labelled:
            raise UserError(
                f"algorithm.public_epochs={self.hp.public_epochs} trains on the labels of public "
                "images, but data.public.labelled=false; set algorithm.public_epochs=0"
            )
        if self.hp.alignment is not None and self.hp.alignment > len(server.public):
            raise UserError(
                f"algorithm.alignment={self.hp.alignment}, but there are {len(server.public)} "
                "public images; lower algorithm.alignment, or leave it out"
            )
        return {}

    def give(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Have every client that has not done so start with transfer learning."""
        return exchange.give(state, "transfer", dict.fromkeys(exchange.everyone), step="transfer")

    def round(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Collect the participants' scores, and send them the mean."""
        everyone = dict.fromkeys(exchange.participants)
        scores = exchange.call("communicate", everyone)
        if scores:
            mean = consensus(upload.logits for upload in scores.values())
            exchange.call("digest", dict.fromkeys(everyone, Consensus(mean, self.hp.temperature)))
        return state

    def transfer(
        self, client: core.Client, state: core.ClientState, down: None
    ) -> tuple[None, core.ClientState]:
        """Train on the labels of public images, then on the client's images."""
        local, private = self.begin(client, state, down), client.with_schedule
        if epochs := self.hp.public_epochs:
            self.train(
                replace(local, client=client.training_on(client.public, "public", epochs=epochs))
            )
        if epochs := self.hp.private_epochs:
            self.train(replace(local, client=replace(private(epochs=epochs), order="private")))
        return None, core.ClientState(client.save(local.model), state.memory)

    def communicate(
        self, client: core.Client, state: core.ClientState, down: None
    ) -> tuple[PublicScores, core.ClientState]:
        """Upload the scores of the round's public images."""
        model = self.begin(client, state, down).model
        return PublicScores(client.logits(model, self._aligned(client))), state

    def digest(
        self, client: core.Client, state: core.ClientState, down: Consensus
    ) -> tuple[None, core.ClientState]:
        """Approach the consensus on public images, then train on the client's images."""
        local, hp = self.begin(client, state, down), self.hp

        def loss(batch: core.Batch) -> Tensor:
            logits, targets = local.model(batch.inputs).logits, down.logits[batch.positions]
            return digest_loss(logits, targets, hp.digest, down.temperature)

        if hp.digest_epochs:
            schedule: dict[str, Any] = {
                "epochs": hp.digest_epochs,
                "batch_size": hp.digest_batch_size,
            }
            public = client.training_on(self._aligned(client), "digest", **schedule)
            core.fit(replace(local, client=public), loss)
        self.train(local)
        return None, core.ClientState(client.save(local.model), state.memory)

    def _aligned(self, client: core.Client) -> core.Samples:
        """Return the public images of a round, the same for all clients."""
        random = self.setting.streams.numpy("fedmd", round_=client.round)
        return client.public.part(random.permutation(len(client.public))[: self.hp.alignment])


def consensus(scores: Iterable[Tensor]) -> Tensor:
    """Return the unweighted mean of the clients' logits [p, C]."""
    return torch.stack([*scores]).double().mean(0).float()


def digest_loss(
    logits: Tensor, targets: Tensor, how: Literal["l1", "kl"], temperature: float
) -> Tensor:
    """Return the distance of a client's logits [B, C] from the consensus [B, C].

    Args:
        logits: the client's.
        targets: the consensus.
        how: "l1", the mean absolute difference, or "kl", T² times the divergence of softmaxes.
        temperature: T, for "kl".
    """
    if how == "l1":
        return F.l1_loss(logits.float(), targets)
    return temperature**2 * kl_divergence(logits, targets, temperature=temperature)
