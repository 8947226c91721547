"""FedCLIP: FedAvg of an adapter on CLIP's image features.

Lu et al., "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning", IEEE
Data Engineering Bulletin 2023, arXiv:2302.13485.

    attention adapter -> AdapterClip.image_features
    averaging of the adapter -> weighted_mean (algorithms/fedavg.py)

Deviations:
    - The experiment's SGD; official: Adam.
    - No random crops, see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.algorithms.fedavg import FedAvg
from fedray.algorithms.registry import algorithms
from fedray.algorithms.zero_shot import ZeroShotClip
from fedray.models import initialise
from fedray.models.clip import FrozenClip, PromptedClip


class AdapterClip(ZeroShotClip):
    """A gate on image features; the texts are fixed.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
    """

    def __init__(self, clip: FrozenClip, names: Sequence[str]) -> None:
        super().__init__(clip, names)
        width = clip.dim
        with torch.device("meta"):  # PyTorch's own values would be drawn from its generator
            adapter = nn.Sequential(
                nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Softmax(dim=-1)
            )
        self.adapter = adapter.to_empty(device="cpu")

    def initialise(self, generator: torch.Generator) -> None:
        """As PyTorch starts linear layers."""
        initialise(self.adapter, generator)

    def image_features(self, inputs: Tensor) -> Tensor:
        """softmax(W_2 tanh(W_1 I + b_1) + b_2) * I, then of unit length [B, d]."""
        image = super().image_features(inputs)
        return F.normalize((self.adapter(image) * image).float(), dim=-1)


@algorithms.add
class FedCLIP(FedAvg):
    """FedAvg of an adapter."""

    name = "fedclip"
    paper = "Lu et al., IEEE Data Eng. Bull. 2023, arXiv:2302.13485"
    shares = "an adapter of image features"
    prompted = True
    has_head = False

    class HParams(FedAvg.HParams):
        """FedCLIP has none of its own."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """An adapter."""
        return AdapterClip(clip, class_names)
