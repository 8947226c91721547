"""A CLIP with one context before the class names (CoOp, PromptFL)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedray.models.clip.frozen import FrozenClip
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.texts import word_embeddings

INIT_STD = 0.02
"""Standard deviation of random initial prompts, as in all official codes."""


class ContextClip(PromptedClip):
    """A CLIP with one context p [m, d_t] before every class name.

    CoOp: Zhou et al., IJCV 2022, arXiv:2109.01134.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        length: m.
        words: words whose embeddings are the initial values; None for N(0, 0.02²).
    """

    def __init__(
        self, clip: FrozenClip, names: Sequence[str], length: int, words: str | None = None
    ) -> None:
        super().__init__(clip, names)
        self.words = words
        self.context = nn.Parameter(torch.zeros(length, clip.text.token_width))

    def initialise(self, generator: torch.Generator) -> None:
        initialise_context(self.context, self.clip, self.words, generator)

    def text_features(self) -> Tensor:
        """Return g(p, k) of the classes in scope [K, d]."""
        return self.texts_after(self.context)


@torch.no_grad()
def initialise_context(
    context: Tensor, clip: FrozenClip, words: str | None, generator: torch.Generator
) -> None:
    """Set a context [..., m, d_t] to the embeddings of `words`, or to noise if that is None."""
    if words is not None:
        context.copy_(word_embeddings(clip.text, words, context.shape[-2]))
    else:
        context.normal_(0.0, INIT_STD, generator=generator)
