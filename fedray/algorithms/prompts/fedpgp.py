"""FedPGP: a shared context plus a personal low-rank correction, with a contrastive loss.

Cui et al., "Harmonizing Generalization and Personalization in Federated Prompt Learning", ICML
2024, arXiv:2405.09771. Official code: github.com/TianyuCuiOvO/FedPGP.

    personal context sigma + U V -> PersonalClip.personal_context
    contrast -> contrast
    local loss CE + mu contrast -> FedPGP.loss
    averaging of sigma alone -> FedPGP.shared

Deviations:
    - z_0 are the features of "a photo of a {class}."; in the official code, without initial words,
      those of "X X ... X {class}.".
    - There is one prompt by default. The official scripts have a second one, which only adds
      classes that are never correct (`copies=2`); Table 3 of FedMGP counts it. Tests use the first
      prompt alone; the official code counts a prediction of the second as an error.
    - The first round has as many participants as any other; official code: all clients.
    - The official loader omits the last incomplete batch (`drop_last=true`).
    - By default, images are not cropped randomly; see promptfl.py.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import ContextMethod, PromptAveraging
from fedray.config import LossWeight, Temperature
from fedray.core import Batch, LocalContext, method
from fedray.models import Classifier, ClassifierOutput, Inputs
from fedray.models.prompted import PromptedClip


@dataclass(frozen=True, slots=True, eq=False)
class ContrastOutput(ClassifierOutput):
    """Logits [B, N*K], copy by copy, and the text features that FedPGP's contrast needs.

    Attributes:
        shared: z_s, text features of sigma [N, K, d].
        personal: z_c, text features of sigma + U V [N, K, d].
    """

    shared: Tensor
    personal: Tensor


class PersonalClip(PromptedClip):
    """A CLIP with N contexts sigma [m, d_t] and their corrections U V of rank b."""

    def make_prompts(self, hparams: Any) -> None:
        copies, length, rank = hparams.copies, hparams.length, hparams.rank
        width = self.clip.text.token_width
        self.sigma = self.prompt(copies, length, width, words=hparams.words)
        self.u = self.prompt(copies, length, rank)
        self.v = self.prompt(copies, rank, width)

    def personal_context(self) -> Tensor:
        """Return the contexts p = sigma + U V [N, m, d_t]."""
        with torch.autocast(self.u.device.type, enabled=False):
            return self.sigma + self.u @ self.v

    def text_features(self) -> Tensor:
        """Return text features [K, d] under the first personal context."""
        return self.texts_after(self.personal_context()[0])

    def shared_and_personal(self) -> tuple[Tensor, Tensor]:
        """Return text features z_s of sigma and z_c of sigma + U V, each [N, K, d]."""
        both = self.texts_after(torch.cat([self.sigma, self.personal_context()]))
        return both[: len(self.sigma)], both[len(self.sigma) :]

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Return a `ContrastOutput` in training, else the prediction under the first context."""
        if not self.training:
            return super().forward(x)
        image = self.image_features(x)
        shared, personal = self.shared_and_personal()
        logits = self.logits(image, personal.flatten(0, 1))
        return ContrastOutput(image, logits, shared, personal)


@method("fedpgp", "FedPGP", "Cui et al., ICML 2024, arXiv:2405.09771")
class FedPGP(PromptAveraging, ContextMethod):
    """An averaged context sigma, plus a personal low-rank correction U V that clients keep."""

    clip_model = PersonalClip

    rank: int = Field(8, ge=1, le=65_536)
    """b, rank of the correction; a rank of at least `length` is no restriction. Official code:
    8 in the script, for a length of 16; 4 by default on the command line."""
    mu: LossWeight = 0.5
    """μ, weight of the contrastive loss; 0 uses the cross-entropy only. Official script:
    0.5."""
    temperature: Temperature = 0.5
    """t, temperature of the contrastive loss. Official code: 0.5."""
    copies: int = Field(1, ge=1, le=8)
    """N, number of prompts; those after the first only add classes that are never correct.
    Official code: 2."""

    def shared(self, model: Classifier) -> Collection[str]:
        return {"sigma"}

    def loss(self, output: Any, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropy of personal features over N K texts plus mu times `contrast`."""
        loss = super().loss(output, batch, local)
        separation = contrast(
            local.model.fixed_texts(), output.shared, output.personal, self.temperature
        )
        return loss + self.mu * separation


def contrast(reference: Tensor, shared: Tensor, personal: Tensor, temperature: float) -> Tensor:
    """Return the loss that pulls shared features to CLIP's and pushes personal ones from them.

    The loss is the mean over prompts and classes of
    -log(e^{cos(z_0,z_s)/t} / (e^{cos(z_0,z_s)/t} + e^{cos(z_s,z_c)/t})).

    Args:
        reference: z_0 [K, d], unit vectors.
        shared: z_s [N, K, d].
        personal: z_c [N, K, d].
        temperature: t.
    """
    pull, push = (reference * shared).sum(-1), (shared * personal).sum(-1)
    return F.softplus((push - pull) / temperature).mean()
