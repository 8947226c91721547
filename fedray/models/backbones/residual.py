"""Residual networks: `resnet4` to `resnet152`, and variants with a small stem.

The usual stem is ImageNet's: 7x7, stride 2 and a max-pool (32 pixels become 8). The small stem is
He et al.'s for CIFAR: 3x3, stride 1 and no max-pool. Short networks have fewer stages. Blocks and
names of tensors are torchvision's.
"""

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from fedray.models.architectures import Architecture, architectures
from fedray.models.backbones.layers import GlobalMean, conv_bn, relu

PAPER = "He et al., CVPR 2016, arXiv:1512.03385"
SHORT = "HtFLlib's, after He et al., CVPR 2016"


def _resnet(
    channels: int,
    image_size: int,
    *,
    depths: tuple[int, ...],
    bottleneck: bool = False,
    small_stem: bool = False,
    width: int = 64,
) -> nn.Sequential:
    """Build a residual network: stage s = 0, 1, ... has `depths[s]` blocks of width `width * 2**s`.

    Every stage but the first halves the sides of the maps. The shortcut of a block is a strided 1x1
    convolution where the shape changes.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck  # takes a second to import

    block: Any = Bottleneck if bottleneck else BasicBlock
    conv, norm = conv_bn(channels, width, 3 if small_stem else 7, 1 if small_stem else 2)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=conv, bn1=norm)
    if not small_stem:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    layers["relu"] = relu()
    inputs = width
    for stage, depth in enumerate(depths):
        inner, blocks = width * 2**stage, []
        for number in range(depth):
            stride, outputs = 2 if stage > 0 and number == 0 else 1, inner * block.expansion
            same = stride == 1 and inputs == outputs
            shortcut = None if same else nn.Sequential(*conv_bn(inputs, outputs, 1, stride))
            blocks.append(block(inputs, inner, stride, shortcut))
            inputs = outputs
        layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    layers["mean"] = GlobalMean()
    return nn.Sequential(layers)


def _add(name: str, summary: str, form: Mapping[str, Any], **further: Any) -> None:
    """Register a network; `form` is that of `_resnet`."""
    raw = (
        form.get("width", 64) * 2 ** (len(form["depths"]) - 1) * (4 if "bottleneck" in form else 1)
    )
    known = {"paper": SHORT, "conv_rule": "fan_out", **further}
    make = partial(_resnet, **form)
    architectures.add(Architecture(name=name, summary=summary, make=make, raw=raw, **known))


_SMALL = {"depths": (1, 1, 1), "small_stem": True, "width": 16}
_summary = "Three basic blocks from 16 channels after a small stem, for a laptop"
_add("resnet8s", _summary, _SMALL, paper="-", channels_last=True)
for _number, _word in enumerate(("One basic block", "Two", "Three", "Four"), 1):
    _summary = _word if _number == 1 else f"{_word} basic blocks"
    _add(
        f"resnet{2 + 2 * _number}", _summary, {"depths": (1,) * _number}, channels_last=_number < 3
    )
_DEEP: Mapping[int, Mapping[str, Any]] = {
    18: {"depths": (2, 2, 2, 2)},
    34: {"depths": (3, 4, 6, 3)},
    50: {"depths": (3, 4, 6, 3), "bottleneck": True},
    101: {"depths": (3, 4, 23, 3), "bottleneck": True},
    152: {"depths": (3, 8, 36, 3), "bottleneck": True},
}
for _depth, _form in _DEEP.items():
    _known = {"paper": PAPER, "reference": f"resnet{_depth}"}
    _summary = f"ResNet-{_depth} as in torchvision"
    _add(f"resnet{_depth}", _summary, _form, shares={"backbone.": ""}, **_known)
    if _depth in (18, 50):
        _summary = f"ResNet-{_depth} with CIFAR's stem: 3x3, stride 1, no max-pool"
        _form = {**_form, "small_stem": True}
        _add(f"resnet{_depth}_small", _summary, _form, shares={"backbone.layer": "layer"}, **_known)
