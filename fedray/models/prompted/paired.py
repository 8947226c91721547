"""A CLIP with two contexts, one shared and one local (FedOTP, PromptFolio)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedray.models.clip.frozen import FrozenClip
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.context import initialise_context
from fedray.models.prompted.texts import placeholders


class PairedClip(PromptedClip):
    """A CLIP with a shared and a local context [m, d_t], each before every class name.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        length: m.
        words: words whose embeddings initialise both contexts; None for N(0, 0.02²).
    """

    def __init__(
        self, clip: FrozenClip, names: Sequence[str], length: int, words: str | None = None
    ) -> None:
        super().__init__(clip, names)
        self.length = length
        self.words = words
        self.shared_context = nn.Parameter(torch.zeros(length, clip.text.token_width))
        self.local_context = nn.Parameter(torch.zeros(length, clip.text.token_width))

    def initialise(self, generator: torch.Generator) -> None:
        initialise_context(self.shared_context, self.clip, self.words, generator)
        initialise_context(self.local_context, self.clip, self.words, generator)

    def text_features(self) -> Tensor:
        """Return unit features [2, K, d] under the shared and the local context."""
        contexts = torch.stack([self.shared_context, self.local_context])
        return self.class_texts(placeholders(self.length)).encode(contexts)
