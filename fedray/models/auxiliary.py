"""A client's model together with a small model whose architecture all clients share."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedray.models.classifier import Classifier, ClassifierOutput
from fedray.models.inputs import ImageFeatures, Inputs, Pixels, values_of

AUXILIARY = "auxiliary."
"""Prefix of the names of the small model's tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class AuxiliaryOutput(ClassifierOutput):
    """The outputs of the client's model and, as `auxiliary`, of the small one for equal images."""

    auxiliary: ClassifierOutput


class WithAuxiliary(Classifier):
    """A client's model together with a small model, whose tensors have the prefix `AUXILIARY`.

    Predictions are those of the client's model, whose tensors keep their names.

    Args:
        own: extractor and head of the client's architecture.
        auxiliary: extractor and head of the architecture that all clients share.
        joint: layers that connect both models and belong to the client; None for no layers.
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
        """Return features and logits of the client's model, and those of the small model."""
        features = self.extractor(values_of(x, Pixels, ImageFeatures))
        return AuxiliaryOutput(features, self.head(features), self.auxiliary(x))

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the client's model, the small model, and the joint layers."""
        return {
            "own": [*self.extractor.parameters(), *self.head.parameters()],
            "auxiliary": list(self.auxiliary.parameters()),
            "joint": list(self.joint.parameters()),
        }


class FusedWithAuxiliary(WithAuxiliary):
    """Both models with a fused feature, whose first entries the small model's head reads.

    The feature is r = joint([g(x), f(x)]). The client's head reads r, the small model's head reads
    r[:, :d_g].

    Args:
        own: extractor f and head, features of width d.
        auxiliary: extractor g and head, features of width d_g <= d.
        joint: `[B, d_g + d]` to `[B, d]`.
    """

    def forward(self, x: Inputs) -> AuxiliaryOutput:
        """Return fused features `[B, d]` with logits, and their first d_g entries with logits."""
        values = values_of(x, Pixels, ImageFeatures)
        small = self.auxiliary.get_submodule("extractor")(values)
        fused: Tensor = self.joint(torch.cat([small, self.extractor(values)], dim=1))
        part = fused[:, : small.shape[1]]
        return AuxiliaryOutput(
            fused, self.head(fused), ClassifierOutput(part, self.auxiliary.head(part))
        )
