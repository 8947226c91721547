"""Image backbones: `[B, channels, H, W]` to a flat `[B, raw]` vector, one table of them all.

The paper's networks follow HtFLlib's layout (FedTSP, CVPR 2026, supplementary C.4): CNN4, GoogLeNet
without batch norm, MobileNetV2 and ResNet4 to ResNet152, each without its classification layer.
The short ones (`mlp`, `cnn2`, `cnn3`, `resnet8s`, `resnet10s`) are ours, for a laptop's CPU.
U-Nets are dense: they give a vector for every pixel, `[B·H·W, raw]`.

Max-pooling stands before ReLU where the layouts have it after: the two commute exactly, values and
gradients, and ReLU then touches a quarter of the numbers.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ARCHITECTURES", "Architecture", "ConvRule", "Pixels"]

ConvRule = Literal["uniform", "fan_out"]
"""How convolutions start: PyTorch's default, or He's normal by fan-out (residual nets)."""


class Architecture(NamedTuple):
    """One backbone of the table.

    Attributes:
        make: (channels, image_size in pixels) to the network, `[B, channels, H, W]` to `[B, raw]`.
        raw: width of the flat vector it gives.
        min_image_size: smallest side of a square image, in pixels, that leaves no map empty.
        conv_rule: the initial distribution of its convolutions.
        channels_last: whether it is trained faster on a CPU with channels last in memory (small
            and wide maps are; deep residual nets at 32 pixels are not).
        dense: whether it gives a vector for every pixel.
    """

    make: Callable[[int, int], nn.Module]
    raw: int
    min_image_size: int = 1
    conv_rule: ConvRule = "uniform"
    channels_last: bool = False
    dense: bool = False


class GlobalMean(nn.Module):
    """Mean over height and width: `[B, raw, H, W]` to `[B, raw]`."""

    def forward(self, x: Tensor) -> Tensor:
        """Average each channel's map."""
        return x.mean((2, 3))


class Residual(nn.Module):
    """`body(x) + shortcut(x)`, then ReLU where the layout has it."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None, relu: bool) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, C, H, W]` to `[B, C', H', W']`; the body's output is reused in place."""
        out: Tensor = self.body(x)
        out += x if self.shortcut is None else self.shortcut(x)
        return F.relu_(out) if self.relu else out


def _relu() -> nn.ReLU:
    return nn.ReLU(inplace=True)


def _conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Convolution without bias that keeps the size at stride 1, and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


# --- plain networks -------------------------------------------------------------------------------


def _mlp(channels: int, image_size: int) -> nn.Sequential:
    """One hidden layer of 128 (ours: 8x8 digits)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, 128), _relu())


def _cnn2(channels: int, image_size: int) -> nn.Sequential:
    """Two 3x3 convolutions of 16 and 32, each max-pooled, and a layer of 128 (ours)."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.MaxPool2d(2),
        _relu(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        _relu(),
        nn.Flatten(),
        nn.Linear(32 * (image_size // 4) ** 2, 128),
        _relu(),
    )


def _cnn3(channels: int, image_size: int) -> nn.Sequential:
    """Three 3x3 convolutions of 32, 64, 128 with batch norm, two max-pools, global mean (ours)."""
    return nn.Sequential(
        *_conv_bn(channels, 32, 3),
        nn.MaxPool2d(2),
        _relu(),
        *_conv_bn(32, 64, 3),
        nn.MaxPool2d(2),
        _relu(),
        *_conv_bn(64, 128, 3),
        _relu(),
        GlobalMean(),
    )


def _cnn4(channels: int, image_size: int) -> nn.Sequential:
    """FedAvg's CNN (HtFLlib `FedAvgCNN`): two 5x5 convolutions without padding and a layer of 512.

    With the head, which is the classifier's, four layers. The vector that is flattened has 1600
    numbers at 32 pixels and 10816 at 64.
    """
    side = ((image_size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.MaxPool2d(2),
        _relu(),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        _relu(),
        nn.Flatten(),
        nn.Linear(64 * side**2, 512),
        _relu(),
    )


def _alexnet(channels: int, image_size: int) -> nn.Sequential:
    """AlexNet's trunk with batch norm (FedBN, FedGLCL): five convolutions to 6x6 maps of 256.

    Its two hidden layers are the projector: `model.projector=4096`.
    """
    del image_size
    return nn.Sequential(
        nn.Conv2d(channels, 64, 11, 4, 2),
        nn.BatchNorm2d(64),
        _relu(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.BatchNorm2d(192),
        _relu(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.BatchNorm2d(384),
        _relu(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.BatchNorm2d(256),
        _relu(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.BatchNorm2d(256),
        _relu(),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
    )


def _alexnet_tiny(channels: int, image_size: int) -> nn.Sequential:
    """Five convolutions with batch norm like AlexNet's, for 48 to 64 pixels on a CPU (ours)."""
    del image_size
    return nn.Sequential(
        *_conv_bn(channels, 32, 5, 2),
        nn.MaxPool2d(2),
        _relu(),
        *_conv_bn(32, 64, 3),
        nn.MaxPool2d(2),
        _relu(),
        *_conv_bn(64, 128, 3),
        _relu(),
        *_conv_bn(128, 128, 3),
        _relu(),
        *_conv_bn(128, 128, 3),
        _relu(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )


def _vgg11(channels: int, image_size: int) -> nn.Sequential:
    """VGG-11 with batch norm, its eight convolutions and a global mean (Simonyan & Zisserman)."""
    del image_size
    layers: list[nn.Module] = []
    inputs = channels
    for outputs, pooled in (
        (64, True), (128, True), (256, False), (256, True),
        (512, False), (512, True), (512, False), (512, True),
    ):  # fmt: skip
        layers += [*_conv_bn(inputs, outputs, 3), *([nn.MaxPool2d(2)] if pooled else []), _relu()]
        inputs = outputs
    return nn.Sequential(*layers, GlobalMean())


# --- residual networks ----------------------------------------------------------------------------

Block = Callable[[int, int, int], tuple[nn.Module, int]]
"""(input channels, width, stride) to (block, its output channels)."""


def _residual(body: nn.Module, inputs: int, outputs: int, stride: int) -> Residual:
    """Add the identity, or a strided 1x1 convolution with batch norm where the shape changes."""
    same = stride == 1 and inputs == outputs
    shortcut = None if same else nn.Sequential(*_conv_bn(inputs, outputs, 1, stride))
    return Residual(body, shortcut, relu=True)


def _basic(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    body = nn.Sequential(*_conv_bn(inputs, width, 3, stride), _relu(), *_conv_bn(width, width, 3))
    return _residual(body, inputs, width, stride), width


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Build torchvision's variant: the stride sits on the 3x3 convolution."""
    outputs = 4 * width
    body = nn.Sequential(
        *_conv_bn(inputs, width, 1),
        _relu(),
        *_conv_bn(width, width, 3, stride),
        _relu(),
        *_conv_bn(width, outputs, 1),
    )
    return _residual(body, inputs, outputs, stride), outputs


def _resnet(
    block: Block,
    depths: tuple[int, ...],
    channels: int,
    image_size: int,
    *,
    small: bool = False,
    width: int = 64,
) -> nn.Sequential:
    """Any residual network: stage s = 0, 1, ... has `depths[s]` blocks of width `w * 2**s`.

    The stem is ImageNet's, 7x7 with stride 2 and a max-pool (32 pixels become 8); with `small` it
    is He et al.'s for CIFAR, 3x3 with stride 1 and no pool. Stages after the first halve the map.
    """
    del image_size
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if small:
        layers["stem"] = nn.Sequential(*_conv_bn(channels, width, 3), _relu())
    else:
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        layers["stem"] = nn.Sequential(*_conv_bn(channels, width, 7, 2), pool, _relu())
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


# --- GoogLeNet ------------------------------------------------------------------------------------


class Inception(nn.Module):
    """Four branches side by side: 1x1, 1x1-3x3, 1x1-5x5, max-pool-1x1 (Szegedy et al., 2014)."""

    def __init__(self, inputs: int, b1: int, r3: int, b3: int, r5: int, b5: int, pool: int) -> None:
        super().__init__()
        self.branch1 = nn.Conv2d(inputs, b1, 1)
        self.branch3 = nn.Sequential(
            nn.Conv2d(inputs, r3, 1), _relu(), nn.Conv2d(r3, b3, 3, padding=1)
        )
        self.branch5 = nn.Sequential(
            nn.Conv2d(inputs, r5, 1), _relu(), nn.Conv2d(r5, b5, 5, padding=2)
        )
        self.branch_pool = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(inputs, pool, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, inputs, H, W]` to `[B, b1 + b3 + b5 + pool, H, W]`; one ReLU for all four."""
        branches = self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)
        return F.relu_(torch.cat(branches, 1))


def _googlenet(channels: int, image_size: int) -> nn.Sequential:
    """GoogLeNet as of 2014, with biases and without batch norm and auxiliary heads, dropout 0.4."""
    del image_size

    def pool() -> nn.MaxPool2d:
        return nn.MaxPool2d(3, stride=2, ceil_mode=True)

    return nn.Sequential(
        nn.Conv2d(channels, 64, 7, stride=2, padding=3),
        pool(),
        _relu(),
        nn.Conv2d(64, 64, 1),
        _relu(),
        nn.Conv2d(64, 192, 3, padding=1),
        pool(),
        _relu(),
        Inception(192, 64, 96, 128, 16, 32, 32),
        Inception(256, 128, 128, 192, 32, 96, 64),
        pool(),
        Inception(480, 192, 96, 208, 16, 48, 64),
        Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64),
        Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128),
        pool(),
        Inception(832, 256, 160, 320, 32, 128, 128),
        Inception(832, 384, 192, 384, 48, 128, 128),
        GlobalMean(),
        nn.Dropout(0.4),
    )


# --- MobileNetV2 ----------------------------------------------------------------------------------

# expansion t, channels c, repeats n, first stride s (Sandler et al., 2018, table 2)
_MOBILENETV2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _inverted(inputs: int, outputs: int, stride: int, expansion: int) -> nn.Module:
    """Expand by a 1x1 convolution, filter per channel, project; add the input where shapes meet."""
    hidden = inputs * expansion
    expand = (*_conv_bn(inputs, hidden, 1), nn.ReLU6(inplace=True)) if expansion != 1 else ()
    body = nn.Sequential(
        *expand,
        *_conv_bn(hidden, hidden, 3, stride, groups=hidden),
        nn.ReLU6(inplace=True),
        *_conv_bn(hidden, outputs, 1),
    )
    return Residual(body, None, relu=False) if stride == 1 and inputs == outputs else body


def _mobilenetv2(channels: int, image_size: int) -> nn.Sequential:
    """MobileNetV2 as in torchvision, stem of stride 2 and dropout 0.2."""
    del image_size
    inputs = 32
    layers: list[nn.Module] = [*_conv_bn(channels, inputs, 3, 2), nn.ReLU6(inplace=True)]
    for expansion, outputs, repeats, stride in _MOBILENETV2:
        for i in range(repeats):
            layers.append(_inverted(inputs, outputs, stride if i == 0 else 1, expansion))
            inputs = outputs
    layers += [*_conv_bn(inputs, 1280, 1), nn.ReLU6(inplace=True), GlobalMean(), nn.Dropout(0.2)]
    return nn.Sequential(*layers)


# --- U-Net ----------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """Every pixel a sample of its own: `[B, raw, H, W]` to `[B·H·W, raw]`.

    Image by image and row by row, as a batch's flattened masks are. A linear layer on these is a
    1x1 convolution on the map, and a loss on them the mean over all pixels.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Move the channels last and flatten the rest; no copy where they lie last already."""
        return x.permute(0, 2, 3, 1).flatten(0, 2)


class Skip(nn.Module):
    """One level of a U-Net: the map itself, beside what a detour at half its size makes of it."""

    def __init__(self, detour: nn.Module) -> None:
        super().__init__()
        self.detour = detour

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, C, H, W]` to `[B, C + C', H, W]`; odd sides are met by the enlarging."""
        below = self.detour(F.max_pool2d(x, 2))
        return torch.cat((x, F.interpolate(below, x.shape[2:], mode="nearest")), 1)


def _unet(width: int, depth: int, channels: int, image_size: int) -> nn.Sequential:
    """U-Net (Ronneberger et al., 2015) of `depth` halvings, `width * 2**level` channels a level.

    Unlike there, convolutions are padded and have batch norm, and the way up enlarges by repeating
    pixels instead of by a transposed convolution. The last 1x1 convolution is the classifier's.
    """
    del image_size

    def twice(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
        return (*_conv_bn(inputs, outputs, 3), _relu(), *_conv_bn(outputs, outputs, 3), _relu())

    inner = width * 2**depth
    net = nn.Sequential(*twice(inner // 2, inner))
    for level in reversed(range(depth)):
        own = width * 2**level
        above = own // 2 if level else channels
        net = nn.Sequential(*twice(above, own), Skip(net), *twice(3 * own, own))
    return nn.Sequential(net, Pixels())


# --- the table ------------------------------------------------------------------------------------


def _residual_net(
    block: Block,
    depths: tuple[int, ...],
    raw: int,
    small: bool = False,
    channels_last: bool = False,
    width: int = 64,
) -> Architecture:
    make = partial(_resnet, block, depths, small=small, width=width)
    return Architecture(make, raw, conv_rule="fan_out", channels_last=channels_last)


def _unet_of(width: int, depth: int) -> Architecture:
    make = partial(_unet, width, depth)
    return Architecture(make, width, 2**depth, "fan_out", channels_last=True, dense=True)


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "mlp": Architecture(_mlp, 128),
        "cnn2": Architecture(_cnn2, 128, min_image_size=4, channels_last=True),
        "cnn3": Architecture(_cnn3, 128, min_image_size=4, channels_last=True),
        "cnn4": Architecture(_cnn4, 512, min_image_size=16, channels_last=True),
        "resnet8s": _residual_net(_basic, (1, 1, 1), 64, small=True, channels_last=True, width=16),
        "resnet10s": _residual_net(_basic, (1, 1, 2), 64, small=True, channels_last=True, width=16),
        "resnet4": _residual_net(_basic, (1,), 64, channels_last=True),
        "resnet6": _residual_net(_basic, (1, 1), 128, channels_last=True),
        "resnet8": _residual_net(_basic, (1, 1, 1), 256),
        "resnet10": _residual_net(_basic, (1, 1, 1, 1), 512),
        "resnet18": _residual_net(_basic, (2, 2, 2, 2), 512),
        "resnet34": _residual_net(_basic, (3, 4, 6, 3), 512),
        "resnet50": _residual_net(_bottleneck, (3, 4, 6, 3), 2048),
        "resnet101": _residual_net(_bottleneck, (3, 4, 23, 3), 2048),
        "resnet152": _residual_net(_bottleneck, (3, 8, 36, 3), 2048),
        "resnet18_small": _residual_net(_basic, (2, 2, 2, 2), 512, small=True),
        "resnet50_small": _residual_net(_bottleneck, (3, 4, 6, 3), 2048, small=True),
        "alexnet": Architecture(_alexnet, 9216, min_image_size=63, channels_last=True),
        "alexnet_tiny": Architecture(_alexnet_tiny, 512, min_image_size=7, channels_last=True),
        "vgg11": Architecture(_vgg11, 512, min_image_size=32, channels_last=True),
        "googlenet": Architecture(_googlenet, 1024, min_image_size=31, channels_last=True),
        "mobilenetv2": Architecture(_mobilenetv2, 1280, conv_rule="fan_out", channels_last=True),
        "unet": _unet_of(64, 4),
        "unet_tiny": _unet_of(16, 2),
    }
)
"""Every backbone by its name."""
