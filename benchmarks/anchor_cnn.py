"""The network of pfl-research's CIFAR-10 benchmark, as a plug-in.

Its `simple_cnn` (benchmarks/model/pytorch/cnn.py): two unpadded 3x3 convolutions of 32 and 64, one
max-pool, dropout 0.25, a layer of 128, dropout 0.5; Glorot's uniform weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedray.models.architectures import Architecture, architectures


class ChannelsLast(nn.Module):
    """Gives images the layout of pfl-research's, which reads them as [B, H, W, channels]."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the images [B, channels, H, W], of which a pixel's channels are neighbours."""
        return images.contiguous(memory_format=torch.channels_last)


def _anchor_cnn(channels: int, image_size: int) -> nn.Sequential:
    """Build all layers but the last, which is the classifier's head."""
    side = (image_size - 4) // 2
    layers = nn.Sequential(
        ChannelsLast(),
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * side**2, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
    )
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return layers


architectures.add(
    Architecture(
        name="anchor_cnn",
        summary="pfl-research's CNN for CIFAR-10",
        make=_anchor_cnn,
        raw=128,
        min_image_size=6,
        keeps_init=True,
    )
)
