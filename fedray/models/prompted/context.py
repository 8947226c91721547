"""Two contexts, one shared and one that stays: what FedOTP and PromptFolio have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from fedray.algorithms.promptfl import ContextHParams, PromptAveraging, start_context
from fedray.models import Classifier
from fedray.models.clip import FrozenClip, PromptedClip
from fedray.models.clip.prompted import placeholders


class PairedClip(PromptedClip):
    """A shared and an own context [m, d_t], each in front of every class name.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        length: m.
        words: start both from the embeddings of these words; None for N(0, 0.02²).
    """

    def __init__(
        self, clip: FrozenClip, names: Sequence[str], length: int, words: str | None = None
    ) -> None:
        super().__init__(clip, names)
        self.length = length
        self.words = words
        self.shared_context = nn.Parameter(torch.zeros(length, clip.text.token_width))
        self.own_context = nn.Parameter(torch.zeros(length, clip.text.token_width))

    def initialise(self, generator: torch.Generator) -> None:
        """The words' embeddings, or noise."""
        start_context(self.shared_context, self.clip, self.words, generator)
        start_context(self.own_context, self.clip, self.words, generator)

    def text_features(self) -> Tensor:
        """Unit features [2, K, d] under the shared and the own context, in one pass."""
        contexts = torch.stack([self.shared_context, self.own_context])
        return self.class_texts(placeholders(self.length)).encode(contexts)


class PairedContexts(PromptAveraging):
    """FedAvg of the shared context; clients keep their own."""

    shares = "one of two contexts"
    one_model = False

    class HParams(PromptAveraging.HParams, ContextHParams):
        """Those of FedAvg and of the contexts."""

    def shared(self, model: Classifier) -> Collection[str]:
        """The shared context."""
        return {"shared_context"}
