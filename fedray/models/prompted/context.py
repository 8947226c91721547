"""A CLIP with contexts before the class names: one, or a shared and a local one."""

from typing import Any

import torch
from torch import Tensor

from fedray.models.prompted.base import PromptedClip


class ContextClip(PromptedClip):
    """A CLIP with one context p [m, d_t] before every class name (CoOp, PromptFL).

    CoOp: Zhou et al., IJCV 2022, arXiv:2109.01134. The method has the hyper-parameter `length`, m,
    and may have `words`, whose embeddings are the initial values.
    """

    def make_prompts(self, hparams: Any) -> None:
        words = getattr(hparams, "words", None)
        self.context = self.prompt(hparams.length, self.clip.text.token_width, words=words)

    def text_features(self) -> Tensor:
        """Return g(p, k) of the classes in scope [K, d]."""
        return self.texts_after(self.context)


class PairedClip(PromptedClip):
    """A CLIP with a shared context [m, d_t] and a local one [l, d_t] before every class name.

    FedOTP and PromptFolio. The hyper-parameters are those of `ContextClip`; l is m, unless a
    subclass defines `local_length`.
    """

    def make_prompts(self, hparams: Any) -> None:
        words, width = getattr(hparams, "words", None), self.clip.text.token_width
        self.shared_context = self.prompt(hparams.length, width, words=words)
        self.local_context = self.prompt(self.local_length(), width, words=words)

    def local_length(self) -> int:
        """Return l."""
        return int(self.hparams.length)

    def text_features(self) -> Tensor:
        """Return unit features [2, K, d] under the shared and the local context."""
        return self.texts_after(torch.stack([self.shared_context, self.local_context]))
