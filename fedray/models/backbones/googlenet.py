"""GoogLeNet as published in 2014."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.models.architectures import architecture
from fedray.models.backbones.layers import GlobalMean, relu


class Inception(nn.Module):
    """Four parallel branches: 1x1, 1x1-3x3, 1x1-5x5, max-pool-1x1 (Szegedy et al., 2014)."""

    def __init__(self, inputs: int, b1: int, r3: int, b3: int, r5: int, b5: int, pool: int) -> None:
        super().__init__()
        self.branch1 = nn.Conv2d(inputs, b1, 1)
        self.branch3 = nn.Sequential(
            nn.Conv2d(inputs, r3, 1), relu(), nn.Conv2d(r3, b3, 3, padding=1)
        )
        self.branch5 = nn.Sequential(
            nn.Conv2d(inputs, r5, 1), relu(), nn.Conv2d(r5, b5, 5, padding=2)
        )
        self.branch_pool = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(inputs, pool, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, inputs, H, W]` to `[B, b1 + b3 + b5 + pool, H, W]`, with one final ReLU."""
        branches = self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)
        return F.relu_(torch.cat(branches, 1))


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


@architecture(
    "googlenet",
    version=2,  # dropout in tests draws from streams of their own
    raw=1024,
    paper="Szegedy et al., CVPR 2015, arXiv:1409.4842",
    min_image_size=31,
    channels_last=True,
)
def _googlenet(channels: int, image_size: int) -> nn.Sequential:
    """GoogLeNet of 2014, without batch norm and auxiliary heads.

    Its layers have biases; dropout is 0.4.
    """
    stem = (nn.Conv2d(channels, 64, 7, stride=2, padding=3), _pool(), relu())
    reduced = (nn.Conv2d(64, 64, 1), relu(), nn.Conv2d(64, 192, 3, padding=1), _pool(), relu())
    return nn.Sequential(
        *stem,
        *reduced,
        Inception(192, 64, 96, 128, 16, 32, 32),
        Inception(256, 128, 128, 192, 32, 96, 64),
        _pool(),
        Inception(480, 192, 96, 208, 16, 48, 64),
        Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64),
        Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128),
        _pool(),
        Inception(832, 256, 160, 320, 32, 128, 128),
        Inception(832, 384, 192, 384, 48, 128, 128),
        GlobalMean(),
        nn.Dropout(0.4),
    )
