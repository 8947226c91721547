"""VGG-11 with batch norm."""

from __future__ import annotations

from torch import nn

from fedray.models.architectures import Architecture, architectures
from fedray.models.backbones.layers import GlobalMean, conv_bn, relu

# output channels of each convolution, and whether a max-pool follows
_VGG11 = (
    (64, True),
    (128, True),
    (256, False),
    (256, True),
    (512, False),
    (512, True),
    (512, False),
    (512, True),
)


def _vgg11(channels: int, image_size: int) -> nn.Sequential:
    """Build VGG-11's eight convolutions with batch norm, and a global mean."""
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, pooled in _VGG11:
        layers += [*conv_bn(inputs, outputs, 3), *([nn.MaxPool2d(2)] if pooled else []), relu()]
        inputs = outputs
    return nn.Sequential(*layers, GlobalMean())


architectures.add(
    Architecture(
        name="vgg11",
        summary="VGG-11's eight convolutions with batch norm and a global mean",
        make=_vgg11,
        raw=512,
        paper="Simonyan & Zisserman, ICLR 2015, arXiv:1409.1556",
        min_image_size=32,
        channels_last=True,
    )
)
