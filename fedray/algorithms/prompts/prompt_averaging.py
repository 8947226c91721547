"""FedAvg of prompts, of all or of some: what the methods of this family share.

They are FedAvg on a model whose weights are prompts (`PromptedClip`), so FedAvg's variants go on
top of them as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg, GlobalModel, TrainedModel
from fedray.core import HyperParameters, PromptMethod, payload_field
from fedray.models import Classifier


@dataclass(frozen=True)
class GlobalPrompts(GlobalModel):
    """The shared part of a model whose weights are prompts, counted as such."""

    weights: Mapping[str, Tensor] = payload_field(
        "prompts",
        reveals="the mean of the participants' prompts; of two participants, each knows the "
        "other's",
    )


@dataclass(frozen=True)
class TrainedPrompts(TrainedModel):
    """The shared part of a client's trained prompts, and how many images trained them."""

    weights: Mapping[str, Tensor] = payload_field(
        "prompts",
        reveals="the client's trained prompts: few numbers, but of its images alone (membership, "
        "its classes)",
    )


class PromptAveraging(PromptMethod, FedAvg):
    """FedAvg whose shared weights are counted as prompts."""

    down_type = GlobalPrompts
    up_type = TrainedPrompts
    uploads = (TrainedPrompts,)
    downloads = (GlobalPrompts,)


class ContextHParams(HyperParameters):
    """Hyper-parameters of methods with contexts."""

    length: int = Field(16, ge=1, le=64)
    """m, tokens of a context. FedMGP's comparison: 16."""
    words: str | None = None
    """Start from the embeddings of these words, for example "a photo of a" with m = 4; None: from
    N(0, 0.02²)."""


class PairedContexts(PromptAveraging):
    """FedAvg of a shared context; each client keeps its local one (FedOTP, PromptFolio)."""

    travels = "one of two contexts"
    one_model = False

    class HParams(PromptAveraging.HParams, ContextHParams):
        """Those of FedAvg and of the contexts."""

    hp: HParams

    def shared(self, model: Classifier) -> Collection[str]:
        """The shared context."""
        return {"shared_context"}
