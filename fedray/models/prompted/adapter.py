"""A CLIP with a trained gate on image features (FedCLIP)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedray.models.clip.frozen import FrozenClip
from fedray.models.init import initialise
from fedray.models.inputs import Inputs
from fedray.models.prompted.fixed import ZeroShotClip
from fedray.models.prompted.texts import unit

PICTURE = "a picture of a {}"
"""The text of a class in FedCLIP's official code."""


class AdapterClip(ZeroShotClip):
    """A CLIP with a trained gate on image features and fixed texts.

    Lu et al., IEEE Data Engineering Bulletin 2023, arXiv:2302.13485.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
    """

    def __init__(self, clip: FrozenClip, names: Sequence[str]) -> None:
        super().__init__(clip, names, PICTURE)
        width = clip.dim
        with torch.device("meta"):  # so that PyTorch's global generator is not used
            adapter = nn.Sequential(
                nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Softmax(dim=-1)
            )
        self.adapter = adapter.to_empty(device="cpu")

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights by PyTorch's default for linear layers."""
        initialise(self.adapter, generator)

    def image_features(self, x: Inputs) -> Tensor:
        """Return softmax(W_2 tanh(W_1 I + b_1) + b_2) * I, scaled to unit length [B, d].

        I is the tower's output, which is not scaled before the gate, as in the official code.
        """
        image = self.encode(x)
        return unit(self.adapter(image) * image)
