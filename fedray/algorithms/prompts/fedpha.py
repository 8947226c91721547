"""FedPHA: an averaged context, and a client's own of its own length, held apart and aligned.

Fang et al., "FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation", ICML 2025,
PMLR 267:15960-15975. Official code: github.com/CYFang6/FedPHA, commit 1ab33df3, trainers GL_SVDMSE
and, with several lengths, GL_SVDMSE_HE.

    projection of the local context by the global one's singular vectors -> project
    pull and push of text features -> alignment
    loss = CE(local) + CE(global) + pull + push -> FedPHA.loss
    averaging of the global context alone -> PairedContexts.shared  (prompts/prompt_averaging.py)

Tests use the local context.

Deviations:
    - With several lengths, the released code fills texts with zeros and reads them where a text of
      the greatest length ends; here every text ends after its own name.
    - A client's context has as many rows as the longest; rows after its own length are never read.
    - As in the released code, the projection has a gradient, also in the global context. Therefore
      contexts start from noise: of equal words, singular values are 0 and the gradient is not
      finite.
    - The first round has as many participants as any other; official code: all clients.
    - By default, images are not cropped randomly; see promptfl.py.
    - Checked against the official code; the paper's text was not at hand.
"""

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import PairedContexts
from fedray.core import Batch, Client, ClientState, LocalContext, method
from fedray.models import ClassifierOutput, Inputs
from fedray.models.prompted import PairedClip, TextOutput


class AlignedClip(PairedClip):
    """A CLIP with a global context [m, d_t] and a local one, of which `tokens` rows are used."""

    length_key = "algorithm.length or algorithm.local_lengths"

    def make_prompts(self, hparams: Any) -> None:
        super().make_prompts(hparams)
        self.tokens = self.local_length()

    def local_length(self) -> int:
        return int(max(self.hparams.local_lengths))

    def text_features(self) -> Tensor:
        """Return unit text features [K, d] under the local context."""
        return self.texts_after(self.local_context[: self.tokens])

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Return the local context's logits; in training, with the text features [3, K, d].

        These are of the local, the projected local and the global context.
        """
        if not self.training:
            return super().forward(x)
        local = self.local_context[: self.tokens]
        with torch.autocast(local.device.type, enabled=False):
            both = torch.stack([local, project(local, self.shared_context, self.hparams.ratio)])
        (own, projected), shared = self.texts_after(both), self.texts_after(self.shared_context)
        image = self.image_features(x)
        return TextOutput(image, self.logits(image, own), torch.stack([own, projected, shared]))


def project(local: Tensor, shared: Tensor, ratio: float) -> Tensor:
    """Return the local context [l, w] in the span of the weakest directions of the global one.

    With right singular vectors v_i of `shared` [m, w], in the order of decreasing singular values,
    V holds those from i = floor(m (1 - ratio)) on; the result is P_l V V^T.
    """
    _, values, vectors = torch.linalg.svd(shared, full_matrices=False)
    weak = vectors[int(len(values) * (1 - ratio)) :]
    projected: Tensor = local @ weak.T @ weak
    return projected


def alignment(own: Tensor, projected: Tensor, shared: Tensor, alpha: float) -> Tensor:
    """Return pull plus push of text features [K, d].

    Pull is the mean square of own - projected over all numbers; push is the mean over classes of
    max(0, alpha - ||own - shared||).
    """
    push = F.relu(alpha - torch.linalg.vector_norm(own - shared, dim=-1)).mean()
    return F.mse_loss(own, projected) + push


@method("fedpha", "FedPHA", "Fang et al., ICML 2025, PMLR 267")
class FedPHA(PairedContexts):
    """An averaged context, and a personal context with a length of its own."""

    clip_model = AlignedClip
    stacks = False  # not compared

    length: int = Field(16, ge=1, le=64)
    """Tokens of the global context. Official code: 16."""
    local_lengths: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field((16,), min_length=1)
    """Tokens of the local contexts; client i has the (i mod n)th of n. Official code: 16, or
    one for each client, for example 4 to 32."""
    alpha: float = Field(1.0, ge=0, le=1e6)
    """α, distance from which on global and local features are not pushed apart. Official code:
    1."""
    ratio: float = Field(0.8, gt=0, le=1)
    """Share of the global context's directions, the weakest, in which the local context is
    projected. Official code: 0.8."""

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Load both contexts, and set the length of the client's own."""
        local = super().begin(client, state, down)
        local.model.tokens = self.local_lengths[client.id % len(self.local_lengths)]
        return local

    def loss(self, output: Any, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropies of both contexts plus the alignment of their features."""
        own, projected, shared = output.text
        global_logits = local.model.logits(output.features, shared)
        loss = super().loss(output, batch, local) + F.cross_entropy(global_logits, batch.labels)
        return loss + alignment(own, projected, shared, self.alpha)
