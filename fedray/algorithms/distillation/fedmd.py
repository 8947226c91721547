"""FedMD: clients of any architectures learn from their mean class scores on public images.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS 2019 workshop,
arXiv:1910.03581. Authors' code: diogenes0319/FedMD_clean, commit ab7a07b (Keras; not run here).

    Algorithm 1, transfer learning       -> FedMD.transfer
    Algorithm 1, communicate             -> FedMD.communicate
    Algorithm 1, aggregate               -> FedMD.round
    Algorithm 1, distribute, digest, revisit -> FedMD.digest, digest_loss

Class scores are logits, without softmax, as in the authors' code. The public images of a round are
drawn from a stream that server and clients share, so that their numbers need not travel. A
digestion is one pass over them, as in all configurations of the authors' code.

Deviations:
    - Models classify the clients' classes only. The authors' models also classify the classes of
      the public images, which differ from the clients'; such images must be unlabelled here, with
      `public_epochs=0`.
    - Transfer learning has a fixed number of epochs; the authors' code stops it early, on test
      images.
    - The public images of a round are drawn uniformly; the authors' code draws the same share of
      every class.
    - One optimiser, the experiment's, serves all trainings and starts anew in each; the authors'
      code has Adam with rate 0.001, and keeps separate moments for public scores and private
      labels.
    - The loss of the digestion is the authors' code's by default; the paper's text was not at hand
      to verify that it states none.

Buffers: those of a client's model are its own.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.losses import kl_divergence
from fedray.base.errors import UserError
from fedray.core import Client, ClientState, Exchange, Server, ServerState, StepResult

PUBLIC_LOGITS = {
    "logits": core.sent("logits", "outputs of models on public images (membership)", axes="p C"),
    "temperature": core.sent("statistics", number=float),
}
"""Logits of the round's public images [p, C], and the divisor that a softmax needs."""


@core.method("fedmd", "FedMD", "Li and Wang, NeurIPS 2019 workshop, arXiv:1910.03581")
class FedMD(core.LocalTraining):
    """Personal models of any architecture, which learn from their mean scores of public images."""

    requires = core.Requires(public=True)
    stacks = False

    public_epochs: int = Field(20, ge=0, le=10_000)
    """Epochs of transfer learning on public labels; 0: none. Authors' code: at most 20."""
    private_epochs: core.Epochs = 25
    """Epochs of transfer learning on the client's images. Authors' code: at most 25."""
    alignment: int | None = Field(None, ge=1, le=1_000_000_000)
    """Most public images of a round; null: all. Authors' code: 5,000."""
    digest_batch_size: int = Field(256, ge=1, le=1_000_000)
    """Public images of a step. Authors' code: 256, or 128 for unequal clients' classes."""
    digest_by: Literal["l1", "kl"] = Field("l1", alias="digest")
    """Loss of the digestion: l1, mean absolute difference of logits (authors' code), or kl."""
    temperature: core.Temperature = 1.0
    """T, divisor of the logits in kl."""

    def init_server(self, server: Server) -> ServerState:
        """Check that public images have labels, if `public_epochs` needs them."""
        if self.public_epochs and not server.public.is_labelled:
            raise UserError("data.public.labelled=false needs algorithm.public_epochs=0")
        return {}

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Have every client that has not done so start with transfer learning."""
        return exchange.give(state, "transfer", dict.fromkeys(exchange.everyone))

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        scores = exchange.call("communicate", dict.fromkeys(exchange.participants))
        if scores:
            mean = torch.stack([upload.logits for upload in scores.values()]).double().mean(0)
            down = self.digest.down(mean.float(), self.temperature)
            exchange.call("digest", dict.fromkeys(exchange.participants, down))
        return state

    def transfer(self, client: Client, state: ClientState, down: None) -> StepResult:
        """Train on the labels of public images, then on the client's images."""
        local = self.begin(client, state, down)
        if self.public_epochs:
            public = client.training_on(client.public, "public", epochs=self.public_epochs)
            self.train(replace(local, client=public))
        private = replace(client.with_schedule(epochs=self.private_epochs), order="private")
        return self.finish(local, self.train(replace(local, client=private)))

    @core.step(up=PUBLIC_LOGITS)
    def communicate(self, client: Client, state: ClientState, down: None) -> StepResult:
        """Upload the logits of the round's public images."""
        logits = client.logits(self.begin(client, state, down).model, self._aligned(client))
        return {"logits": logits, "temperature": self.temperature}, state

    @core.step(down=PUBLIC_LOGITS)
    def digest(self, client: Client, state: ClientState, down: Any) -> StepResult:
        """Approach the consensus on public images, then train on the client's images."""
        local, schedule = self.begin(client, state, down), {"batch_size": self.digest_batch_size}

        def loss(batch: core.Batch) -> Tensor:
            logits, targets = local.model(batch.inputs).logits, down.logits[batch.positions]
            return digest_loss(logits, targets, self.digest_by, down.temperature)

        public = client.training_on(self._aligned(client), "digest", epochs=1, **schedule)
        core.fit(replace(local, client=public), loss)
        return self.finish(local, self.train(local))

    def _aligned(self, client: Client) -> core.Samples:
        """Return the public images of a round, the same for all clients."""
        random = self.setting.streams.numpy("fedmd", round_=client.round)
        return client.public.part(random.permutation(len(client.public))[: self.alignment])


def digest_loss(logits: Tensor, targets: Tensor, how: Literal["l1", "kl"], t: float) -> Tensor:
    """Return "l1", the mean absolute difference of logits [B, C], or "kl", T² KL of softmaxes."""
    if how == "l1":
        return F.l1_loss(logits.float(), targets)
    return t**2 * kl_divergence(logits, targets, temperature=t)
