"""A client's model together with a small one, whose architecture all clients share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedray.models.classifier import Classifier, ClassifierOutput
from fedray.models.inputs import ImageFeatures, Inputs, Pixels, values_of

AUXILIARY = "auxiliary."
"""What the names of the small model's tensors begin with."""


@dataclass(frozen=True, slots=True, eq=False)
class AuxiliaryOutput(ClassifierOutput):
    """What both models make of the same images.

    Attributes:
        auxiliary: what the small model gives.
    """

    auxiliary: ClassifierOutput


class WithAuxiliary(Classifier):
    """The client's own model under its own names, and the small one under `AUXILIARY`.

    It predicts as the own model does.

    Args:
        own: extractor and head, of the client's architecture.
        auxiliary: extractor and head, of the architecture that all clients share.
        joint: layers between both, the client's own; none by default.
    """

    def __init__(
        self, own: Classifier, auxiliary: Classifier, joint: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.reads = own.reads
        self.extractor = own.get_submodule("extractor")
        self.head = own.head
        self.auxiliary = auxiliary
        self.joint = nn.Identity() if joint is None else joint

    def forward(self, x: Inputs) -> AuxiliaryOutput:
        """Return features and logits of the own model, and those of the small one."""
        features = self.extractor(values_of(x, Pixels, ImageFeatures))
        return AuxiliaryOutput(features, self.head(features), self.auxiliary(x))

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the own model, of the small one, and of what joins them."""
        own = [*self.extractor.parameters(), *self.head.parameters()]
        return {
            "own": own,
            "auxiliary": list(self.auxiliary.parameters()),
            "joint": list(self.joint.parameters()),
        }


class FusedWithAuxiliary(WithAuxiliary):
    """One feature of both models, of which the small model's head sees the beginning.

    r = joint([g(x), f(x)]) is the feature; the client's head reads r, the small one's r[:, :d_g].

    Args:
        own: extractor f and head, features of width d.
        auxiliary: extractor g and head, features of width d_g <= d.
        joint: `[B, d_g + d]` to `[B, d]`.
    """

    def forward(self, x: Inputs) -> AuxiliaryOutput:
        """Return fused features `[B, d]`, logits of them, and those of their first d_g entries."""
        values = values_of(x, Pixels, ImageFeatures)
        small = self.auxiliary.get_submodule("extractor")(values)
        fused: Tensor = self.joint(torch.cat([small, self.extractor(values)], dim=1))
        part = fused[:, : small.shape[1]]
        return AuxiliaryOutput(
            fused, self.head(fused), ClassifierOutput(part, self.auxiliary.head(part))
        )
