"""NewMethod: a shared prompt around a frozen CLIP, mixed with the plain texts on each client.

Replace the mixing by your own idea. Run the method with

    fedray run promptfl_clip --plugin new_method.py algorithm=new_method

The parameters of the model are all that is trained: CLIP's towers stay frozen and never travel.
docs/hooks.md of fedray lists all methods that you can override.

    Eq. (1) -> MixedClip.text_features
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.plugin import (
    Classifier,
    ContextClip,
    FrozenClip,
    PromptAveraging,
    PromptedClip,
    method,
)


class MixedClip(ContextClip):  # inherits `context` [m, d_t], the vectors before the class names
    """A CLIP whose class features mix those of a trained context and those of plain texts."""

    def __init__(self, clip: FrozenClip, names: Sequence[str], length: int) -> None:
        super().__init__(clip, names, length)
        self.mix = nn.Parameter(torch.zeros(()))

    def initialise(self, generator: torch.Generator) -> None:
        """Set the initial values of all parameters; draw random ones from `generator`."""
        super().initialise(generator)
        nn.init.zeros_(self.mix)

    def text_features(self) -> Tensor:
        """Return unit features [K, d] of the classes in scope: a g(p, k) + (1 - a) g(k); Eq. (1).

        g(p, k) has the context before the name of class k; g(k) is "a photo of a {class}.".
        """
        a = self.mix.sigmoid()
        mixed = a * super().text_features() + (1 - a) * self.fixed_texts()
        return nn.functional.normalize(mixed, dim=-1)


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(PromptAveraging):  # FedAvg whose weights are counted as prompts
    """FedAvg of a context; each client keeps its own mixture with the plain texts."""

    length: int = Field(4, ge=1, le=64)  # a hyper-parameter: `algorithm.length`
    """m, number of vectors of the context."""

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """Return the model of all clients."""
        return MixedClip(clip, class_names, self.length)

    def shared(self, model: Classifier) -> Collection[str]:
        """Return the names of the parameters that are averaged; the others stay on the client."""
        return {"context"}
