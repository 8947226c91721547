"""Fast linear maps with frozen weights.

Frozen weights are reordered once into oneDNN's blocked layout, for the outputs and for the
gradients of the inputs. Results agree with `F.linear` to 1e-6 of their size, because the order of
summation differs; equal inputs give equal bits.

oneDNN's operators in torch are private (`torch.ops.mkldnn`), so pyproject.toml has an upper bound
for torch, and `tests/runtime/test_private_names.py` lists the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class FrozenLinear:
    """The map x W^T + b, differentiable in x alone.

    Args:
        weights: W of one or several maps of the same inputs, each [outputs, inputs]; the outputs of
            the maps are concatenated.
        biases: b of each map, [outputs].
        half: multiply in bfloat16; inputs and outputs stay float32.
    """

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], *, half: bool = False
    ) -> None:
        self.weight, self.bias = _joined(weights), _joined(biases)
        if half:
            self.weight, self.bias = self.weight.bfloat16(), self.bias.bfloat16()
        self._forward: Tensor | None = None
        self._backward: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [N, inputs] to [N, outputs], of the inputs' dtype."""
        inputs = x.to(self.weight.dtype)
        if not _laid_out(inputs):
            return F.linear(inputs, self.weight, self.bias).to(x.dtype)
        output: Tensor = _Map.apply(inputs, self)
        return output.to(x.dtype)

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs without a gradient."""
        if self._forward is None:
            self._forward = _blocked(self.weight)
        return _multiply(x, self._forward, self.bias)

    def gradient(self, of_outputs: Tensor) -> Tensor:
        """Return the gradient of the inputs."""
        if self._backward is None:
            self._backward = _blocked(self.weight.T.contiguous())
        return _multiply(of_outputs.contiguous(), self._backward, None)


class _Map(torch.autograd.Function):
    """A product that stores no activations for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: FrozenLinear) -> Tensor:
        ctx.linear = linear
        return linear.outputs(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.gradient(gradients[0]), None


def _laid_out(x: Tensor) -> bool:
    """Return True if the blocked layout applies: on the CPU, without autocast."""
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    if x.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()  # type: ignore[no-any-return]
    return x.dtype == torch.float32 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors; a single tensor is not copied, since it may map a file."""
    return tensors[0].detach() if len(tensors) == 1 else torch.cat(tuple(tensors)).detach()


def _blocked(weight: Tensor) -> Tensor:
    blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return blocked


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
