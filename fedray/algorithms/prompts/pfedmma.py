"""pFedMMA: adapters in both towers of a CLIP; only the layer that the towers share is averaged.

Ghiasvand, Alizadeh and Pedarsani, "pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal
Adapter for Vision-Language Models", ICLR 2026, arXiv:2507.05394. Adapters as in MMA (Yang et al.,
CVPR 2024). Official code: github.com/sajjad-ucsb/pFedMMA (commit 84197bb, trainers/pFedMMA.py).

    block(z) + alpha W_u relu(W_s relu(W_d z)) -> Adapter.forward
    averaging of W_s alone -> PFedMMA.shared

Deviations:
    - z is the block's input after the block's first layer norm, and relu the nonlinearity, as in
      the official code.
    - As there, steps of adapters use the gradients without the factor alpha (`Adapter.forward`).
    - Towers of different depths have adapters in the same number of last blocks.
    - The official code computes text features in its first test and keeps them for all later ones.
    - The first round has as many participants as any other; official code: all clients.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from collections.abc import Collection, Mapping
from functools import partial
from math import ceil, sqrt
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import PromptMethod, method
from fedray.models import Classifier, Inputs, Pixels, tensor_names, undrawn_linear
from fedray.models.prompted import PromptedClip, check_depth, unit


class Adapter(nn.Module):
    """The layers of an adapter that belong to one tower of width `outer`, w."""

    def __init__(self, outer: int, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down, self.up = undrawn_linear(outer, width), undrawn_linear(width, outer)

    def forward(self, norm: nn.Module, shared: nn.Module, z: Tensor) -> Tensor:
        """Return alpha W_u relu(W_s relu(W_d norm(z))) of a block's input z [T, n, w].

        The gradients in its weights are those without alpha, the gradient in z is the true one.
        """
        x = self.down(norm(_with_gradient(z, self.scale))).relu()
        return _with_gradient(self.up(shared(x).relu()) * self.scale, 1 / self.scale)


class AdaptedClip(PromptedClip):
    """A CLIP with an adapter beside each of the last blocks of both towers."""

    reads = Pixels

    def make_prompts(self, hparams: Any) -> None:
        width, scale = hparams.width, hparams.scale
        layers = self.clip.vision.layers, self.clip.text.layers
        depth = hparams.depth or ceil(min(layers) * 2 / 3)
        check_depth(depth, *layers)
        outer = self.clip.vision.width, self.clip.text.token_width
        self.vision, self.text = (
            nn.ModuleList(Adapter(w, width, scale) for _ in range(depth)) for w in outer
        )
        self.shared = nn.ModuleList(undrawn_linear(width, width) for _ in range(depth))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw weights from N(0, 2/outputs) (He et al., 2015); biases are 0."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, sqrt(2 / layer.out_features), generator=generator)
                layer.bias.zero_()

    def image_features(self, x: Inputs) -> Tensor:
        return unit(self.encode(x, branches=self._branches("image tower", self.vision)))

    def text_features(self) -> Tensor:
        return self.class_texts().encode(branches=self._branches("text tower", self.text))

    def _branches(self, tower: str, adapters: nn.ModuleList) -> Mapping[str, partial[Tensor]]:
        """Return a tower's adapters by the names of their blocks, whose first norm they use."""
        blocks = self.clip.towers[tower].get_submodule("transformer.resblocks")
        last = [*blocks.named_children()][-len(adapters) :]
        return {
            f"transformer.resblocks.{index}": partial(adapter, block.get_submodule("ln_1"), shared)
            for (index, block), adapter, shared in zip(last, adapters, self.shared, strict=True)
        }


@method("pfedmma", "pFedMMA", "Ghiasvand et al., ICLR 2026, arXiv:2507.05394")
class PFedMMA(PromptMethod, FedAvg):
    """Adapters in both towers; their common middle layer is averaged, the others stay local."""

    clip_model = AdaptedClip

    width: int = Field(32, ge=1, le=4096)
    """r, the width of the adapters. Official code: 32."""
    scale: float = Field(0.001, gt=0, le=1e3)
    """α, the factor of the adapters' outputs. Official code: 0.001."""
    depth: int | None = Field(None, ge=1, le=64)
    """Number of last blocks with an adapter; null: two thirds. Official code: blocks 5 to 12 of
    12."""

    def shared(self, model: Classifier) -> Collection[str]:
        return {name for name in tensor_names(model) if name.startswith("shared.")}


def _with_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, whose gradient is multiplied by a factor."""
    return x.detach() + factor * (x - x.detach())
