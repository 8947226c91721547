"""FlexLoRA: LoRA whose server averages the products of factors; each client has its own rank.

Bai et al., "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources", NeurIPS 2024, arXiv:2402.11505, for low-rank updates of a CLIP as in lora.py.

    mean of the products B A -> products
    factors of the mean's largest singular values -> truncated, cut

Deviations:
    - The server keeps the mean cut to the largest rank. Clients start each round from it, cut to
      their rank.
    - A client's update has the scale alpha/sqrt(r) of its own rank r, which is part of the product.
    - The authors' code was not compared.
    - Those of lora.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prompts.lora import LowRankClip, product
from fedray.core import PromptMethod, method
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PromptedClip


def products(method: Any, upload: Any) -> core.Tensors:
    """Return n_k times the scaled products B_k A_k."""
    weight, of = method.weight(upload), {n: t.double() for n, t in upload.model.items()}
    towers = [name[2:] for name in of if name.startswith("a.")]
    return {t: product(of[f"a.{t}"], of[f"b.{t}"], method.alpha) * weight for t in towers}


@method("flexlora", "FlexLoRA", "Bai et al., NeurIPS 2024, arXiv:2402.11505")
class FlexLoRA(PromptMethod, FedAvg):
    """FedAvg of the products of low-rank updates, cut to each client's rank."""

    one_model = True
    up = {"model": replace(FedAvg.up["model"], combine=products)}
    stacks = False  # the factors of a mean amplify rounding, so that they cannot be compared

    ranks: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field((2, 4), min_length=1)
    """r, the rank of each client in turn; one number: the rank of all. CLIP-LoRA: 2."""
    alpha: float = Field(1.0, gt=0, le=1e6)
    """α; the updates' scale is α/sqrt(r). CLIP-LoRA: 1."""

    def size(self, client: int) -> int:
        return self.ranks[client % len(self.ranks)]

    def sized_model(self, clip: FrozenClip, class_names: Sequence[str], size: int) -> PromptedClip:
        return LowRankClip(clip, class_names, SimpleNamespace(rank=size, alpha=self.alpha))

    def has_global_model(self, state: core.ServerState) -> bool:
        return len(set(self.ranks)) == 1

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the initial factors of the largest rank."""
        largest = max(range(self.setting.clients), key=self.size)
        return {"model": server.initial(server.architectures[largest])}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Return the factors of each client's rank."""
        downs = {
            rank: self.down({n: cut(n, t, rank) for n, t in state["model"].items()})
            for rank in {self.size(client) for client in clients}
        }
        return {client: downs[self.size(client)] for client in clients}

    def server_step(
        self, state: core.ServerState, total: core.Total, server: core.Server
    ) -> core.ServerState:
        model: dict[str, Tensor] = {}
        for tower, summed in total["model"].items():
            rank = state["model"][f"a.{tower}"].shape[-2]
            a, b = truncated(summed / total["weight"], rank, self.alpha)
            model |= {f"a.{tower}": a.float(), f"b.{tower}": b.float()}
        return {"model": {name: model[name] for name in state["model"]}}


def cut(name: str, factor: Tensor, rank: int) -> Tensor:
    """Return `rank` rows of A [..., r, w] or columns of B [..., w, r], as `product` scales them."""
    if name.startswith("a."):
        return factor[..., :rank, :]
    return factor[..., :rank] * sqrt(rank / factor.shape[-1])


def truncated(update: Tensor, rank: int, alpha: float) -> tuple[Tensor, Tensor]:
    """Return factors A and B of the `rank` largest singular values of an update [..., w, w].

    With U S V = update, A is V and B is U S, so that `product` is the nearest update of this rank.
    """
    u, s, v = torch.linalg.svd(update, full_matrices=False)
    b = u[..., :rank] * s[..., None, :rank]
    return v[..., :rank, :].contiguous(), b * (sqrt(rank) / alpha)
