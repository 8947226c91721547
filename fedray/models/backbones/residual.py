"""Residual networks: `resnet4` to `resnet152`, and variants with a small stem.

The usual stem is ImageNet's: 7x7, stride 2 and a max-pool (32 pixels become 8). The small stem is
He et al.'s for CIFAR: 3x3, stride 1 and no max-pool. Short networks have fewer stages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from torch import nn

from fedray.models.architectures import Architecture, PretrainedLayout, architectures
from fedray.models.backbones.layers import GlobalMean, Residual, conv_bn, relu

Block = Callable[[int, int, int], tuple[nn.Module, int]]
"""A function of (input channels, width, stride) that returns (block, its output channels)."""

PAPER = "He et al., CVPR 2016, arXiv:1512.03385"
SHORT = "HtFLlib's, after He et al., CVPR 2016"


def _residual(body: nn.Module, inputs: int, outputs: int, stride: int) -> Residual:
    """Add a shortcut: the identity, or a strided 1x1 convolution if the shape changes."""
    same = stride == 1 and inputs == outputs
    shortcut = None if same else nn.Sequential(*conv_bn(inputs, outputs, 1, stride))
    return Residual(body, shortcut, relu=True)


def _basic(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Build a basic block: two 3x3 convolutions."""
    body = nn.Sequential(*conv_bn(inputs, width, 3, stride), relu(), *conv_bn(width, width, 3))
    return _residual(body, inputs, width, stride), width


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Build a bottleneck block as in torchvision, with the stride in the 3x3 convolution."""
    outputs = 4 * width
    body = nn.Sequential(
        *conv_bn(inputs, width, 1),
        relu(),
        *conv_bn(width, width, 3, stride),
        relu(),
        *conv_bn(width, outputs, 1),
    )
    return _residual(body, inputs, outputs, stride), outputs


def _stem(channels: int, width: int, small: bool) -> nn.Sequential:
    """Build the stem, see the module's docstring."""
    if small:
        return nn.Sequential(*conv_bn(channels, width, 3), relu())
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(*conv_bn(channels, width, 7, 2), pool, relu())


def _resnet(
    block: Block,
    depths: tuple[int, ...],
    small_stem: bool,
    width: int,
    channels: int,
    image_size: int,
) -> nn.Sequential:
    """Build a residual network: stage s = 0, 1, ... has `depths[s]` blocks of width `width * 2**s`.

    Every stage but the first halves the sides of the maps.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(channels, width, small_stem))
    inputs = width
    for stage, depth in enumerate(depths):
        blocks = []
        for i in range(depth):
            stride = 2 if stage > 0 and i == 0 else 1
            made, inputs = block(inputs, width * 2**stage, stride)
            blocks.append(made)
        layers[f"stage{stage + 1}"] = nn.Sequential(*blocks)
    layers["mean"] = GlobalMean()
    return nn.Sequential(layers)


def _add(
    name: str,
    summary: str,
    block: Block,
    depths: tuple[int, ...],
    raw: int,
    *,
    paper: str = SHORT,
    small_stem: bool = False,
    width: int = 64,
    channels_last: bool = False,
    pretrained_layout: PretrainedLayout | None = None,
) -> None:
    architectures.add(
        Architecture(
            name=name,
            summary=summary,
            make=partial(_resnet, block, depths, small_stem, width),
            raw=raw,
            paper=paper,
            conv_rule="fan_out",
            channels_last=channels_last,
            pretrained_layout=pretrained_layout,
        )
    )


_add(
    "resnet8s",
    "Three basic blocks from 16 channels after a small stem, for a laptop",
    _basic,
    (1, 1, 1),
    64,
    paper="-",
    small_stem=True,
    width=16,
    channels_last=True,
)
_add(
    "resnet10s",
    "Four basic blocks from 16 channels after a small stem, for a laptop",
    _basic,
    (1, 1, 2),
    64,
    paper="-",
    small_stem=True,
    width=16,
    channels_last=True,
)
_add("resnet4", "One basic block", _basic, (1,), 64, channels_last=True)
_add("resnet6", "Two basic blocks", _basic, (1, 1), 128, channels_last=True)
_add("resnet8", "Three basic blocks", _basic, (1, 1, 1), 256)
_add("resnet10", "Four basic blocks", _basic, (1, 1, 1, 1), 512)
for _depth, _block, _depths, _raw in (
    (18, _basic, (2, 2, 2, 2), 512),
    (34, _basic, (3, 4, 6, 3), 512),
    (50, _bottleneck, (3, 4, 6, 3), 2048),
    (101, _bottleneck, (3, 4, 23, 3), 2048),
    (152, _bottleneck, (3, 8, 36, 3), 2048),
):
    _add(
        f"resnet{_depth}",
        f"ResNet-{_depth} as in torchvision",
        _block,
        _depths,
        _raw,
        paper=PAPER,
        pretrained_layout=PretrainedLayout(f"resnet{_depth}"),
    )
for _depth, _block, _depths, _raw in (
    (18, _basic, (2, 2, 2, 2), 512),
    (50, _bottleneck, (3, 4, 6, 3), 2048),
):
    _add(
        f"resnet{_depth}_small",
        f"ResNet-{_depth} with CIFAR's stem: 3x3, stride 1, no max-pool",
        _block,
        _depths,
        _raw,
        paper=PAPER,
        small_stem=True,
        # the stem has another size and keeps its drawn values
        pretrained_layout=PretrainedLayout(
            f"resnet{_depth}", backbone_only=("stem.",), reference_only=("fc.", "conv1.", "bn1.")
        ),
    )
