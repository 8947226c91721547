"""U-Nets, which return a vector for every pixel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.models.architectures import architecture
from fedray.models.backbones.layers import conv_bn, relu

DENSE: dict[str, Any] = {
    "paper": "Ronneberger et al., MICCAI 2015, arXiv:1505.04597",
    "conv_rule": "fan_out",
    "channels_last": True,
    "dense": True,
}


class PerPixel(nn.Module):
    """Conversion of maps to one sample per pixel, in the order of a batch's flattened masks.

    A linear layer on the samples is a 1x1 convolution on the map, and a mean loss over the samples
    is the mean over all pixels.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, raw, H, W]` to `[B·H·W, raw]`, without a copy if channels are last in memory."""
        return x.permute(0, 2, 3, 1).flatten(0, 2)


class Skip(nn.Module):
    """One level of a U-Net: the map itself, concatenated with the output of a detour at half size.

    Args:
        detour: the layers that process the halved map.
    """

    def __init__(self, detour: nn.Module) -> None:
        super().__init__()
        self.detour = detour

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, C, H, W]` to `[B, C + C', H, W]`, also for odd sides."""
        below = self.detour(F.max_pool2d(x, 2))
        return torch.cat((x, F.interpolate(below, x.shape[2:], mode="nearest")), 1)


def _twice(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Return two 3x3 convolutions with batch norm and ReLU."""
    return (*conv_bn(inputs, outputs, 3), relu(), *conv_bn(outputs, outputs, 3), relu())


def _unet(width: int, depth: int, channels: int) -> nn.Sequential:
    """Build a U-Net (Ronneberger et al., 2015); level l has `width * 2**l` maps.

    Unlike in the paper, convolutions are padded and have batch norm, and upsampling repeats pixels
    instead of using transposed convolutions. The last 1x1 convolution belongs to the classifier.
    """
    bottom = width * 2**depth
    net = nn.Sequential(*_twice(bottom // 2, bottom))
    for level in reversed(range(depth)):
        outputs = width * 2**level
        inputs = outputs // 2 if level else channels
        net = nn.Sequential(*_twice(inputs, outputs), Skip(net), *_twice(3 * outputs, outputs))
    return nn.Sequential(net, PerPixel())


@architecture("unet", raw=64, min_image_size=16, **DENSE)
def _large(channels: int, image_size: int) -> nn.Sequential:
    """U-Net of four halvings from 64 channels, with batch norm; dense."""
    return _unet(64, 4, channels)


@architecture("unet_tiny", raw=16, min_image_size=4, **DENSE)
def _tiny(channels: int, image_size: int) -> nn.Sequential:
    """U-Net of two halvings from 16 channels, for a laptop; dense."""
    return _unet(16, 2, channels)
