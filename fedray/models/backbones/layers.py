"""Layers that several backbones share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class GlobalMean(nn.Module):
    """Mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, raw, H, W]` to `[B, raw]`."""
        return x.mean((2, 3))


class Residual(nn.Module):
    """The sum `body(x) + shortcut(x)`, optionally followed by ReLU.

    Args:
        body: the layers that the shortcut skips.
        shortcut: the layers of the shortcut; None for the identity.
        relu: whether ReLU follows the sum.
    """

    def __init__(self, body: nn.Module, shortcut: nn.Module | None, relu: bool) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, C, H, W]` to `[B, C', H', W']`; the body's output is changed in place."""
        out: Tensor = self.body(x)
        out += x if self.shortcut is None else self.shortcut(x)
        return F.relu_(out) if self.relu else out


def relu() -> nn.ReLU:
    """Return an in-place ReLU."""
    return nn.ReLU(inplace=True)


def conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution without bias, padded to keep the size at stride 1, and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)
