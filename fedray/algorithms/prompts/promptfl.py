"""PromptFL: FedAvg of one context in front of the class names, around a frozen CLIP.

Guo et al., "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models",
IEEE Transactions on Mobile Computing 2023, arXiv:2208.11625. Prompts as in CoOp (Zhou et al., IJCV
2022): "X X ... X {class}." with the m words in front replaced.

    text features g(p, k) -> ContextClip.text_features
    averaging of p -> weighted_mean (algorithms/fedavg.py)
    with FedProx, mu/2 ||p - p_t||² -> proximal_term (algorithms/fedprox.py)

All methods on prompts are FedAvg, or local training, on a model whose weights are prompts
(`PromptedClip`); so FedAvg's variants go on top of PromptFL as they are.

Deviations:
    - No random crops: images are prepared as for testing, so that what the frozen vision tower
      makes of them is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.base import Algorithm
from fedray.algorithms.fedavg import FedAvg, PromptModel, TrainedPromptModel
from fedray.algorithms.fedprox import FedProx
from fedray.algorithms.registry import algorithms
from fedray.config import Frozen
from fedray.models.clip import FrozenClip, PromptedClip
from fedray.models.clip.prompted import placeholders, word_embeddings

STD = 0.02
"""Deviation of random initial prompts, in all official codes."""


class ContextClip(PromptedClip):
    """One context p [m, d_t] in front of every class name (CoOp).

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        length: m.
        words: start from the embeddings of these words; None for N(0, 0.02²).
    """

    def __init__(
        self, clip: FrozenClip, names: Sequence[str], length: int, words: str | None = None
    ) -> None:
        super().__init__(clip, names)
        self.length = length
        self.words = words
        self.context = nn.Parameter(torch.zeros(length, clip.text.token_width))

    def initialise(self, generator: torch.Generator) -> None:
        """The words' embeddings, or noise."""
        start_context(self.context, self.clip, self.words, generator)

    def text_features(self) -> Tensor:
        """g(p, k) of the classes in scope [K, d]."""
        return self.class_texts(placeholders(self.length)).encode(self.context)


@torch.no_grad()
def start_context(
    context: Tensor, clip: FrozenClip, words: str | None, generator: torch.Generator
) -> None:
    """Give a context [..., m, d_t] its initial value: the embeddings of `words`, or noise."""
    if words is not None:
        context.copy_(word_embeddings(clip.text, words, context.shape[-2]))
    else:
        context.normal_(0.0, STD, generator=generator)


class ContextHParams(Frozen):
    """Hyper-parameters of methods with contexts."""

    length: int = Field(16, ge=1, le=64)
    """m, tokens of a context. FedMGP's comparison: 16."""
    words: str | None = None
    """Start from the embeddings of these words, for example "a photo of a" with m = 4; None: from
    N(0, 0.02²)."""


class PromptAveraging(FedAvg):
    """FedAvg of prompts, all or some of them."""

    prompted = True
    has_head = False
    down = PromptModel
    up = TrainedPromptModel


@algorithms.add
class PromptFL(PromptAveraging):
    """FedAvg of one context."""

    name = "promptfl"
    paper = "Guo et al., IEEE TMC 2023, arXiv:2208.11625"
    shares = "one context"

    class HParams(PromptAveraging.HParams, ContextHParams):
        """PromptFL's hyper-parameters."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """One context."""
        return ContextClip(clip, class_names, self.hp.length, self.hp.words)


@algorithms.add
class FedProxPromptFL(PromptFL, FedProx):
    """PromptFL with FedProx's proximal term (DP2FL's comparison "FP+P")."""

    name = "promptfl_fedprox"

    class HParams(PromptFL.HParams, FedProx.HParams):
        """Those of both; μ = 0 is PromptFL."""


@algorithms.add
class LocalPrompts(Algorithm):
    """One context for each client, trained alone."""

    name = "local_prompts"
    paper = "Zhou et al., IJCV 2022, arXiv:2109.01134 (CoOp), at each client"
    shares = "nothing"
    prompted = True
    has_head = False

    class HParams(ContextHParams):
        """Those of the context."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """One context."""
        return ContextClip(clip, class_names, self.hp.length, self.hp.words)
