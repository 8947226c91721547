"""Base classes of methods that train prompts around a frozen CLIP and average all or some of them.

They apply FedAvg to a model whose weights are prompts (`PromptedClip`), so that variants of FedAvg
can be combined with them unchanged.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from pydantic import Field

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import PromptMethod, sent
from fedray.models import Classifier
from fedray.models.prompted import ContextClip, DualPromptClip, PairedClip

ONE_NAME = r"^[^{}]*\{\}[^{}]*$"
"""The pattern of a text with {} once, for the name of a class."""
TRAINED = sent(
    "prompts",
    "the client's trained prompts: few numbers, but of its images alone (membership, its classes)",
    combine="mean",
)


class PromptAveraging(PromptMethod, FedAvg):
    """FedAvg with shared weights that are counted as prompts."""

    down = {
        "model": sent(
            "prompts",
            "the mean of the participants' prompts; of two participants, each knows the other's",
        )
    }
    up = {"model": TRAINED}


class ContextMethod(PromptMethod):
    """A method whose model is one context in front of the class names, or is made of contexts."""

    clip_model: ClassVar[Any] = ContextClip
    length: int = Field(16, ge=1, le=64)
    """m, tokens of a context. FedMGP's comparison: 16."""
    words: str | None = None
    """Words whose embeddings are the initial context, for example "a photo of a" with m = 4;
    null: draw the initial context from N(0, 0.02²)."""


class PairedContexts(PromptAveraging):
    """FedAvg of the shared context of a `PairedClip`; each client keeps its local context."""

    clip_model: ClassVar[Any] = PairedClip

    def shared(self, model: Classifier) -> Collection[str]:
        return {"shared_context"}


class CoupledPrompts(PromptMethod):
    """A method whose model consists of text prompts and maps from them to vision prompts."""

    clip_model = DualPromptClip
    length: int = Field(2, ge=1, le=64)
    """n, tokens of each prompt (MaPLe: 2)."""
    depth: int = Field(1, ge=1, le=64)
    """J, number of blocks with prompts in both towers; 1: prompts at the input only. MaPLe: 9;
    DP2FL's equations: 1."""
    words: str | None = "a photo of a"
    """Words whose embeddings are the initial first text prompt; null: draw it from N(0,
    0.02²)."""
