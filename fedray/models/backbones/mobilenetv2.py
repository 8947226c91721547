"""MobileNetV2."""

from __future__ import annotations

from torch import nn

from fedray.models.architectures import Architecture, PretrainedLayout, architectures
from fedray.models.backbones.layers import GlobalMean, Residual, conv_bn

# expansion t, channels c, repeats n, first stride s (Sandler et al., 2018, table 2)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _inverted(inputs: int, outputs: int, stride: int, expansion: int) -> nn.Module:
    """Build an inverted bottleneck: expand, convolve per channel, project; residual if possible."""
    hidden = inputs * expansion
    expand = (*conv_bn(inputs, hidden, 1), nn.ReLU6(inplace=True)) if expansion != 1 else ()
    body = nn.Sequential(
        *expand,
        *conv_bn(hidden, hidden, 3, stride, groups=hidden),
        nn.ReLU6(inplace=True),
        *conv_bn(hidden, outputs, 1),
    )
    return Residual(body, None, relu=False) if stride == 1 and inputs == outputs else body


def _mobilenetv2(channels: int, image_size: int) -> nn.Sequential:
    """Build MobileNetV2 as in torchvision, with a stem of stride 2 and dropout 0.2."""
    inputs = 32
    layers: list[nn.Module] = [*conv_bn(channels, inputs, 3, 2), nn.ReLU6(inplace=True)]
    for expansion, outputs, repeats, stride in _STAGES:
        for i in range(repeats):
            layers.append(_inverted(inputs, outputs, stride if i == 0 else 1, expansion))
            inputs = outputs
    layers += [*conv_bn(inputs, 1280, 1), nn.ReLU6(inplace=True), GlobalMean(), nn.Dropout(0.2)]
    return nn.Sequential(*layers)


architectures.add(
    Architecture(
        name="mobilenetv2",
        version=2,  # dropout in tests draws from streams of their own
        summary="MobileNetV2 as in torchvision",
        make=_mobilenetv2,
        raw=1280,
        paper="Sandler et al., CVPR 2018, arXiv:1801.04381",
        conv_rule="fan_out",
        channels_last=True,
        pretrained_layout=PretrainedLayout("mobilenet_v2"),
    )
)
