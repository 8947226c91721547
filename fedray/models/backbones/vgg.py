"""VGG-11 with batch norm."""

from __future__ import annotations

from torch import nn

from fedray.models.architectures import architecture
from fedray.models.backbones.layers import GlobalMean, conv_bn, relu

_CHANNELS, _POOLED = (64, 128, 256, 256, 512, 512, 512, 512), (0, 1, 3, 5, 7)
"""Output channels of each convolution; the convolutions that a max-pool follows."""


@architecture(
    "vgg11",
    raw=512,
    paper="Simonyan & Zisserman, ICLR 2015, arXiv:1409.1556",
    min_image_size=32,
    channels_last=True,
)
def _vgg11(channels: int, image_size: int) -> nn.Sequential:
    """VGG-11's eight convolutions with batch norm and a global mean."""
    layers: list[nn.Module] = []
    inputs = channels
    for number, outputs in enumerate(_CHANNELS):
        pool = [nn.MaxPool2d(2)] if number in _POOLED else []
        layers += [*conv_bn(inputs, outputs, 3), *pool, relu()]
        inputs = outputs
    return nn.Sequential(*layers, GlobalMean())
