"""A CLIP with a context and its personal correction of low rank (FedPGP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedray.models.classifier import ClassifierOutput
from fedray.models.clip.frozen import FrozenClip
from fedray.models.inputs import Inputs
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.context import INIT_STD, initialise_context
from fedray.models.prompted.texts import placeholders


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
    """A CLIP with N contexts sigma [m, d_t] and their corrections U V of rank b.

    Cui et al., ICML 2024, arXiv:2405.09771.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        length: m.
        rank: b.
        copies: N.
        words: words whose embeddings initialise sigma; None for N(0, 0.02²).
    """

    def __init__(
        self,
        clip: FrozenClip,
        names: Sequence[str],
        length: int,
        rank: int,
        copies: int = 1,
        words: str | None = None,
    ) -> None:
        super().__init__(clip, names)
        width = clip.text.token_width
        self.length = length
        self.words = words
        self.sigma = nn.Parameter(torch.zeros(copies, length, width))
        self.u = nn.Parameter(torch.zeros(copies, length, rank))
        self.v = nn.Parameter(torch.zeros(copies, rank, width))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Set sigma from words or noise; draw U and V from N(0, 0.02²)."""
        initialise_context(self.sigma, self.clip, self.words, generator)
        self.u.normal_(0.0, INIT_STD, generator=generator)
        self.v.normal_(0.0, INIT_STD, generator=generator)

    def personal_context(self) -> Tensor:
        """Return the contexts p = sigma + U V [N, m, d_t]."""
        with torch.autocast(self.u.device.type, enabled=False):
            return self.sigma + self.u @ self.v

    def text_features(self) -> Tensor:
        """Return text features [K, d] under the first personal context."""
        return self._encode(self.personal_context()[0])

    def shared_and_personal(self) -> tuple[Tensor, Tensor]:
        """Return text features z_s of sigma and z_c of sigma + U V, each [N, K, d]."""
        both = self._encode(torch.cat([self.sigma, self.personal_context()]))
        return both[: len(self.sigma)], both[len(self.sigma) :]

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Return a `ContrastOutput` in training, else the prediction under the first context."""
        if not self.training:
            return super().forward(x)
        image = self.image_features(x)
        shared, personal = self.shared_and_personal()
        logits = self.logits(image, personal.flatten(0, 1))
        return ContrastOutput(image, logits, shared, personal)

    def _encode(self, context: Tensor) -> Tensor:
        return self.class_texts(placeholders(self.length)).encode(context)
