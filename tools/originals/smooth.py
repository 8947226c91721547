"""Networks without kinks, so that rounding stays rounding: a plug-in of the tiny federation.

A ReLU or a maximum passes another gradient where its input is moved over the kink by rounding.
Then weights on two processors differ by 1e-5 to 1e-3 after a few rounds.
"""

from __future__ import annotations

from torch import nn

from fedray.plugin import Group, architecture, groups


@architecture("smooth_cnn")
def smooth_cnn(channels: int, image_size: int) -> nn.Module:
    """Return two convolutions with softplus and mean pooling, and a layer of 32 with tanh."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.Softplus(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.Softplus(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (image_size // 4) ** 2, 32),
        nn.Tanh(),
    )


@architecture("smooth_mlp")
def smooth_mlp(channels: int, image_size: int) -> nn.Module:
    """Return a layer of 32 with tanh."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, 32), nn.Tanh())


@architecture("smooth_bn")
def smooth_bn(channels: int, image_size: int) -> nn.Module:
    """Return a convolution with batch norm, mean pooling and a layer of 32."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Softplus(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (image_size // 2) ** 2, 32),
        nn.Softplus(),
    )


groups.add(Group("smooth", "Two without kinks, in turn", ("smooth_cnn", "smooth_mlp")))
