"""Residual networks: `resnet4` to `resnet152`, and variants with a small stem.

The usual stem is ImageNet's: 7x7, stride 2 and a max-pool (32 pixels become 8). The small stem is
He et al.'s for CIFAR: 3x3, stride 1 and no max-pool. Short networks have fewer stages. Tensors have
torchvision's names; torchvision itself takes more than a second to import.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from fedray.models.architectures import Architecture, architectures
from fedray.models.backbones.layers import GlobalMean, conv_bn, relu

PAPER = "He et al., CVPR 2016, arXiv:1512.03385"
SHORT = "HtFLlib's, after He et al., CVPR 2016"


class Block(nn.Module):
    """Convolutions with batch norm, a shortcut, and ReLU.

    The shortcut is the identity, or a strided 1x1 convolution if the shape changes.

    Args:
        inputs: channels of the input.
        convolutions: (channels, side of the kernel, stride) of each convolution.
    """

    def __init__(self, inputs: int, convolutions: tuple[tuple[int, int, int], ...]) -> None:
        super().__init__()
        last, stride = inputs, 1
        for number, (outputs, kernel, step) in enumerate(convolutions, 1):
            conv, norm = conv_bn(last, outputs, kernel, step)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"bn{number}", norm)
            last, stride = outputs, stride * step
        same = stride == 1 and inputs == last
        self.downsample = None if same else nn.Sequential(*conv_bn(inputs, last, 1, stride))
        self._depth = len(convolutions)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, inputs, H, W]` to `[B, outputs, H', W']`."""
        out = x
        for number in range(1, self._depth + 1):
            out = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(out))
            out = F.relu_(out) if number < self._depth else out
        out += x if self.downsample is None else self.downsample(x)
        return F.relu_(out)


def _convolutions(width: int, stride: int, *, bottleneck: bool) -> tuple[tuple[int, int, int], ...]:
    """Return a block's convolutions; a bottleneck has its stride in the 3x3 one (torchvision)."""
    if bottleneck:
        return (width, 1, 1), (width, 3, stride), (4 * width, 1, 1)
    return (width, 3, stride), (width, 3, 1)


def _resnet(
    depths: tuple[int, ...],
    bottleneck: bool,
    small_stem: bool,
    width: int,
    channels: int,
    image_size: int,
) -> nn.Sequential:
    """Build a residual network: stage s = 0, 1, ... has `depths[s]` blocks of width `width * 2**s`.

    Every stage but the first halves the sides of the maps.
    """
    conv, norm = conv_bn(channels, width, 3 if small_stem else 7, 1 if small_stem else 2)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=conv, bn1=norm)
    if not small_stem:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    layers["relu"] = relu()
    inputs = width
    for stage, depth in enumerate(depths):
        blocks = []
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            convolutions = _convolutions(width * 2**stage, stride, bottleneck=bottleneck)
            blocks.append(Block(inputs, convolutions))
            inputs = convolutions[-1][0]
        layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    layers["mean"] = GlobalMean()
    return nn.Sequential(layers)


def _add(
    name: str,
    summary: str,
    depths: tuple[int, ...],
    raw: int,
    *,
    bottleneck: bool = False,
    small_stem: bool = False,
    width: int = 64,
    paper: str = SHORT,
    channels_last: bool = False,
    reference: str = "",
) -> None:
    architectures.add(
        Architecture(
            name=name,
            summary=summary,
            make=partial(_resnet, depths, bottleneck, small_stem, width),
            raw=raw,
            paper=paper,
            conv_rule="fan_out",
            channels_last=channels_last,
            reference=reference,
            own=("conv1.", "bn1.") if reference and small_stem else (),
        )
    )


for _name, _count, _depths in (("resnet8s", "Three", (1, 1, 1)), ("resnet10s", "Four", (1, 1, 2))):
    _summary = f"{_count} basic blocks from 16 channels after a small stem, for a laptop"
    _add(_name, _summary, _depths, 64, paper="-", small_stem=True, width=16, channels_last=True)
_add("resnet4", "One basic block", (1,), 64, channels_last=True)
_add("resnet6", "Two basic blocks", (1, 1), 128, channels_last=True)
_add("resnet8", "Three basic blocks", (1, 1, 1), 256)
_add("resnet10", "Four basic blocks", (1, 1, 1, 1), 512)
_DEEP: tuple[tuple[int, tuple[int, ...], bool], ...] = (
    (18, (2, 2, 2, 2), False),
    (34, (3, 4, 6, 3), False),
    (50, (3, 4, 6, 3), True),
    (101, (3, 4, 23, 3), True),
    (152, (3, 8, 36, 3), True),
)
for _depth, _stages, _deep in _DEEP:
    _add(
        f"resnet{_depth}",
        f"ResNet-{_depth} as in torchvision",
        _stages,
        2048 if _deep else 512,
        bottleneck=_deep,
        paper=PAPER,
        reference=f"resnet{_depth}",
    )
    if _depth in (18, 50):
        _add(
            f"resnet{_depth}_small",
            f"ResNet-{_depth} with CIFAR's stem: 3x3, stride 1, no max-pool",
            _stages,
            2048 if _deep else 512,
            bottleneck=_deep,
            small_stem=True,
            paper=PAPER,
            reference=f"resnet{_depth}",
        )
