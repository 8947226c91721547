"""LoRA: FedAvg of the factors of low-rank updates of CLIP's attention.

Low-rank updates: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
arXiv:2106.09685. On CLIP: Zanella and Ben Ayed, "Low-Rank Few-Shot Adaptation of Vision-Language
Models", CVPRW 2024, arXiv:2405.18541; updates of queries, keys and values in all blocks of both
towers, as in the authors' code (MaxZanella/CLIP-LoRA, commit 358f0d7; its switches encoder=both,
position=all, params=q k v). Mean of the factors: Zhang et al., "Towards Building the Federated
GPT" (FedIT), ICASSP 2024, arXiv:2305.05644. The mean of the products is flexlora.py.

    update W + alpha/sqrt(r) B A -> LowRankClip.updates, product
    mean of A and of B -> combined_rows, mean_of (core/sums.py)

Deviations:
    - No dropout before A (CLIP-LoRA: 0.25 in training).
    - Updates are scaled by alpha/sqrt(r), as in CLIP-LoRA's code; LoRA's paper: alpha/r.
    - Text features use one template; CLIP-LoRA has one for each data set.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from math import sqrt
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import UserError
from fedray.core import PromptMethod, method
from fedray.models import Inputs, Pixels
from fedray.models.prompted import PromptedClip, unit


class LowRankClip(PromptedClip):
    """A CLIP with a low-rank update of the queries', keys' and values' maps in every block."""

    reads = Pixels

    def make_prompts(self, hparams: Any) -> None:
        rank, clip = hparams.rank, self.clip
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for tower, width in (("vision", clip.vision.width), ("text", clip.text.token_width)):
            if rank > width:
                raise UserError(
                    f"algorithm.rank, or a number of algorithm.ranks, is {rank}, but the {tower} "
                    f"tower of model.clip is only {width} wide; set it to {width} or less"
                )
            layers = getattr(clip, tower).layers
            self.a[tower] = nn.Parameter(torch.zeros(layers, 3, rank, width))
            self.b[tower] = nn.Parameter(torch.zeros(layers, 3, width, rank))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw A as PyTorch draws linear layers; B is 0, so that the CLIP is unchanged."""
        for a in self.a.values():
            bound = 1 / sqrt(a.shape[-1])
            a.uniform_(-bound, bound, generator=generator)

    def updates(self, tower: str) -> dict[str, Tensor]:
        """Return the changes of a tower's weights by name: those of each block [3w, w]."""
        changes = product(self.a[tower], self.b[tower], self.hparams.alpha).flatten(1, 2)
        name = "transformer.resblocks.{}.attn.in_proj_weight"
        return {name.format(block): change for block, change in enumerate(changes)}

    def image_features(self, x: Inputs) -> Tensor:
        return unit(self.encode(x, weights=self.updates("vision")))

    def text_features(self) -> Tensor:
        return self.class_texts().encode(weights=self.updates("text"))


@method("lora", "LoRA", "Zanella and Ben Ayed, CVPRW 2024, arXiv:2405.18541")
class LoRA(PromptMethod, FedAvg):
    """FedAvg of low-rank updates of both towers of a CLIP."""

    clip_model = LowRankClip

    rank: int = Field(2, ge=1, le=4096)
    """r, the rank of an update. CLIP-LoRA: 2."""
    alpha: float = Field(1.0, gt=0, le=1e6)
    """α; the updates' scale is α/sqrt(r). CLIP-LoRA: 1."""


def product(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return alpha/sqrt(r) B A [..., w, w] of factors A [..., r, w] and B [..., w, r]."""
    with torch.autocast(a.device.type, enabled=False):
        return alpha / sqrt(a.shape[-2]) * (b @ a)
