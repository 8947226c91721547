"""Small networks of unusual layers; a plug-in of the fuzzer, and bodies of its reference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedray.plugin import architecture


class Drop(nn.Module):
    """Dropout that draws single precision, so that it is the same in double precision."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(x.shape) > 0.3).to(x) / 0.7


class Gain(nn.Module):
    """A factor in double precision, and a counter that is an integer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        return (x * self.gain).to(x.dtype)


class Mean(nn.Module):
    """The mean of a map."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@architecture("fuzz_norm")
def fuzz_norm(channels: int, side: int) -> nn.Module:
    """A convolution with batch norm, and layer norm."""
    first = nn.Conv2d(channels, 8, 3, stride=2, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), Mean(), nn.LayerNorm(8))


@architecture("fuzz_drop")
def fuzz_drop(channels: int, side: int) -> nn.Module:
    """A perceptron with dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, 24), Drop(), nn.Tanh())


@architecture("fuzz_frozen")
def fuzz_frozen(channels: int, side: int) -> nn.Module:
    """A frozen layer below one that learns."""
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(channels * side**2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()
    )
    body[1].requires_grad_(False)
    return body


@architecture("fuzz_types")
def fuzz_types(channels: int, side: int) -> nn.Module:
    """Tensors of three types."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side**2, 16), Gain(16), nn.Tanh())
