"""A CLIP with two contexts, one shared and one local (FedOTP, PromptFolio)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedray.models.clip.frozen import FrozenClip
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.context import initialise_context


class PairedClip(PromptedClip):
    """A CLIP with a shared context [m, d_t] and a local one [l, d_t] before every class name.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        length: m.
        words: words whose embeddings initialise both contexts; None for N(0, 0.02²).
        local_length: l; None: m.
    """

    def __init__(
        self,
        clip: FrozenClip,
        names: Sequence[str],
        length: int,
        words: str | None = None,
        local_length: int | None = None,
    ) -> None:
        super().__init__(clip, names)
        self.words = words
        width = clip.text.token_width
        self.shared_context = nn.Parameter(torch.zeros(length, width))
        self.local_context = nn.Parameter(torch.zeros(local_length or length, width))

    def initialise(self, generator: torch.Generator) -> None:
        initialise_context(self.shared_context, self.clip, self.words, generator)
        initialise_context(self.local_context, self.clip, self.words, generator)

    def text_features(self) -> Tensor:
        """Return unit features [2, K, d] under the shared and the local context."""
        return self.texts_after(torch.stack([self.shared_context, self.local_context]))
