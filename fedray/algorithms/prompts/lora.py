"""LoRA: low-rank updates of CLIP's attention, averaged as factors (FedIT) or products (FlexLoRA).

Low-rank updates: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
arXiv:2106.09685. On CLIP: Zanella and Ben Ayed, "Low-Rank Few-Shot Adaptation of Vision-Language
Models", CVPRW 2024, arXiv:2405.18541; updates of queries, keys and values in all blocks of both
towers, as in the authors' code (MaxZanella/CLIP-LoRA, commit 358f0d7; its switches encoder=both,
position=all, params=q k v). Mean of factors: Zhang et al., "Towards Building the Federated GPT",
ICASSP 2024, arXiv:2305.05644. Mean of products: Bai et al., "Federated Fine-tuning of Large
Language Models under Heterogeneous Tasks and Client Resources" (FlexLoRA), NeurIPS 2024,
arXiv:2402.11505.

    update W + alpha/sqrt(r) B A -> LowRankClip.updates, product
    mean of A and of B -> Averaging.summand, Averaging.server_step  (mean.py)
    mean of the products -> LoRA.summand
    factors of the mean's largest singular values -> truncated, LoRA.downlink

Deviations:
    - No dropout before A (CLIP-LoRA: 0.25 in training), since a step must be a function of its
      batch.
    - Updates are scaled by alpha/sqrt(r), as in CLIP-LoRA's code; LoRA's paper: alpha/r.
    - FlexLoRA's clients start each round from the mean, cut to their rank; its server also keeps it
      cut to the largest rank. FlexLoRA's code was not compared.
    - Text features use one template; CLIP-LoRA has one for each data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import PromptMethod, algorithms
from fedray.errors import UserError
from fedray.models import Inputs, Pixels
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PromptedClip
from fedray.models.prompted.texts import unit

TOWERS = ("vision", "text")


class LowRankClip(PromptedClip):
    """A CLIP with a low-rank update of the queries', keys' and values' maps in every block.

    Zanella and Ben Ayed, CVPRW 2024, arXiv:2405.18541.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        rank: r.
        alpha: the updates' scale, see `product`.

    Raises:
        UserError: if the rank is larger than the width of a tower.
    """

    reads = Pixels

    def __init__(self, clip: FrozenClip, names: Sequence[str], rank: int, alpha: float) -> None:
        super().__init__(clip, names)
        self.alpha = alpha
        sizes = (clip.vision.layers, clip.vision.width), (clip.text.layers, clip.text.token_width)
        if rank > (narrowest := min(width for _, width in sizes)):
            raise UserError(
                f"algorithm.ranks has {rank}, but a tower of model.clip is only {narrowest} wide; "
                f"set every rank to {narrowest} or less"
            )
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for tower, (layers, width) in zip(TOWERS, sizes, strict=True):
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
        changes = product(self.a[tower], self.b[tower], self.alpha)
        return {
            f"transformer.resblocks.{block}.attn.in_proj_weight": change.flatten(0, 1)
            for block, change in enumerate(changes)
        }

    def image_features(self, x: Inputs) -> Tensor:
        return unit(self.encode(x, weights=self.updates("vision")))

    def text_features(self) -> Tensor:
        return self.class_texts().encode(weights=self.updates("text"))


@algorithms.add
class LoRA(PromptMethod, FedAvg):
    """FedAvg of low-rank updates of both towers of a CLIP; clients may have different ranks."""

    name = "lora"
    title = "LoRA"
    paper = "Zanella and Ben Ayed, CVPRW 2024, arXiv:2405.18541"
    travels = "low-rank updates of both towers"
    equal_mean: ClassVar[Mapping[str, object] | None] = {"weights": "uniform", "mean": "factors"}

    class HParams(FedAvg.HParams):
        ranks: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field((2,), min_length=1)
        """r, the rank of each client in turn; one number: the rank of all. CLIP-LoRA: 2."""
        alpha: float = Field(1.0, gt=0, le=1e6)
        """α, the updates' scale is α/sqrt(r). CLIP-LoRA: 1."""
        mean: Literal["factors", "products"] = "factors"
        """What the server averages: factors, A and B separately (FedIT), or products, B A, whose
        mean is cut to each client's rank by a singular value decomposition (FlexLoRA)."""

        @model_validator(mode="after")
        def _has_one_shape(self) -> Self:
            if self.mean == "factors" and len(set(self.ranks)) > 1:
                raise ValueError(
                    "factors of several ranks have no mean; set algorithm.mean=products, or "
                    "algorithm.ranks to one number"
                )
            return self

    hp: HParams

    def size(self, client: int) -> int:
        return self.hp.ranks[client % len(self.hp.ranks)]

    def sized_model(self, clip: FrozenClip, class_names: Sequence[str], size: int) -> PromptedClip:
        return LowRankClip(clip, class_names, size, self.hp.alpha)

    def has_global_model(self, state: core.ServerState) -> bool:
        return len(set(self.hp.ranks)) == 1

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the initial factors of the largest rank."""
        largest = max(range(self.setting.clients), key=self.size)
        return {"model": server.initial(server.architectures[largest])}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Return the factors of each client's rank; B is rescaled by sqrt(r/R)."""
        downs = {}
        for rank in {self.size(client) for client in clients}:
            model = {
                name: tensor[..., :rank, :]
                if name.startswith("a.")
                else tensor[..., :rank] * sqrt(rank / tensor.shape[-1])
                for name, tensor in state["model"].items()
            }
            downs[rank] = self.down_type.of(server.model, model)
        return {client: downs[self.size(client)] for client in clients}

    def summand(self, upload: Any) -> core.StateTree:
        """Return n_k, and n_k A_k and n_k B_k or n_k times the scaled products B_k A_k."""
        if self.hp.mean == "factors":
            return super().summand(upload)
        weight, factors = self.weight(upload), upload.weights
        products = {
            tower: product(
                factors[f"a.{tower}"].double(), factors[f"b.{tower}"].double(), self.hp.alpha
            )
            for tower in TOWERS
        }
        return {"weight": torch.tensor(weight).double(), "model": core.weighed(products, weight)}

    def server_step(
        self, state: core.ServerState, total: core.Total, server: core.Server
    ) -> core.ServerState:
        if self.hp.mean == "factors":
            return super().server_step(state, total, server)
        model: dict[str, Tensor] = {}
        for tower, products in total["model"].items():
            a, b = truncated(products / total["weight"], max(self.hp.ranks), self.hp.alpha)
            model |= {f"a.{tower}": a.float(), f"b.{tower}": b.float()}
        return {"model": {name: model[name] for name in state["model"]}}


def product(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return alpha/sqrt(r) B A [..., w, w] of factors A [..., r, w] and B [..., w, r]."""
    with torch.autocast(a.device.type, enabled=False):
        return alpha / sqrt(a.shape[-2]) * (b @ a)


def truncated(update: Tensor, rank: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Return factors A and B of the `rank` largest singular values of an update [..., w, w].

    With U S V = update, A is V and B is U S, so that `product` is the nearest update of this rank.
    """
    u, s, v = torch.linalg.svd(update, full_matrices=False)
    b = u[..., :rank] * s[..., None, :rank]
    return v[..., :rank, :].contiguous(), b * (sqrt(rank) / alpha)
