"""Layers that several backbones share."""

from torch import Tensor, nn


class GlobalMean(nn.Module):
    """Mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, raw, H, W]` to `[B, raw]`."""
        return x.mean((2, 3))


def relu() -> nn.ReLU:
    """Return an in-place ReLU."""
    return nn.ReLU(inplace=True)


def conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution without bias, padded to keep the size at stride 1, and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)
