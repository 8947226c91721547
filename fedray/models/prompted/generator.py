"""FedTPG: one network, shared by all, writes the context from the names of a client's classes.

Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models", ICLR 2024,
arXiv:2310.06123. Official code: github.com/boschresearch/FedTPG.

    prompt generator -> PromptGenerator
    context of the classes at hand -> GeneratorClip.text_features
    local loss among the client's classes -> FedTPG.local_loss
    averaging, equal weights -> weighted_mean (algorithms/fedavg.py)

Deviations:
    - The experiment's optimiser and schedule; official: SGD, lr 0.003, cosine, 500 rounds.
    - FedMGP's port adds a context that is never used to what it counts (Table 3: 4,208,128); here
      it is the network alone, 4,206,080 for ViT-B/16.
    - No random crops, see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.fedavg import FedAvg, GlobalModel, TrainedModel
from fedray.algorithms.promptfl import STD
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.language.encoders.base import same_bits
from fedray.models import initialise
from fedray.models.clip import FrozenClip, PromptedClip
from fedray.models.clip.prompted import placeholders

HEADS = 4


class PromptGenerator(nn.Module):
    """Queries that attend to text features, then a gated feed-forward network.

    x = attention(LN(S), LN(E), LN(E)), without a residual; x + FF(x) with
    FF = LN, Linear to 8w, GEGLU, Linear to w.

    Args:
        length: m, the number of queries S.
        width: w of the tokens, and of the attention.
        dim: d of the text features.
    """

    def __init__(self, length: int, width: int, dim: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(length, width))
        self.norm_queries = nn.LayerNorm(width)
        self.norm_names = nn.LayerNorm(dim)
        self.to_queries = nn.Linear(width, width)
        self.to_keys = nn.Linear(dim, width)
        self.to_values = nn.Linear(dim, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 8 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, names: Tensor) -> Tensor:
        """A context [m, w] for the text features E [K, d] of class names."""
        names = self.norm_names(names)
        queries = self.to_queries(self.norm_queries(self.queries))
        x = self.out(_attention(queries, self.to_keys(names), self.to_values(names)))
        wide, gate = self.widen(self.norm(x)).chunk(2, dim=-1)
        context: Tensor = x + self.narrow(wide * F.gelu(gate))
        return context

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """S from N(0, 0.02²); the network as PyTorch starts such layers."""
        for norm in (self.norm_queries, self.norm_names, self.norm):
            norm.reset_parameters()  # constants, no draw
        for layer in (self.out, self.widen, self.narrow):
            initialise(layer, generator)
        maps = (self.to_queries, self.to_keys, self.to_values)
        rows, columns = sum(len(layer.weight) for layer in maps), maps[0].weight.shape[1]
        for layer in maps:  # nn.MultiheadAttention: Xavier of the three stacked, no bias
            bound = sqrt(6 / (rows + columns))
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.zero_()
        self.out.bias.zero_()
        self.queries.normal_(0.0, STD, generator=generator)


def _attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention in `HEADS` heads: [m, w] and twice [K, w] give [m, w]."""

    def heads(x: Tensor) -> Tensor:
        return x.reshape(1, len(x), HEADS, -1).transpose(1, 2)

    with same_bits(queries.device):
        mixed = F.scaled_dot_product_attention(heads(queries), heads(keys), heads(values))
    return mixed.transpose(1, 2).reshape(len(queries), -1)


class GeneratorClip(PromptedClip):
    """A generator whose context stands in front of every class name.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        length: m.
    """

    def __init__(self, clip: FrozenClip, names: Sequence[str], length: int) -> None:
        super().__init__(clip, names)
        self.length = length
        with torch.device("meta"):  # PyTorch's own values would be drawn from its generator
            generator = PromptGenerator(length, clip.text.token_width, clip.dim)
        self.generator = generator.to_empty(device="cpu")

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the network."""
        self.generator.initialise(generator)

    def text_features(self) -> Tensor:
        """Text features [K, d] under the context that the classes in scope give."""
        context = self.generator(self.fixed_texts("{}"))
        return self.class_texts(placeholders(self.length)).encode(context)


@algorithms.add
class FedTPG(FedAvg):
    """FedAvg of a prompt generator."""

    name = "fedtpg"
    paper = "Qiu et al., ICLR 2024, arXiv:2310.06123"
    shares = "a prompt generator"
    prompted = True
    has_head = False

    class HParams(FedAvg.HParams):
        """FedTPG's hyper-parameters."""

        weights: Literal["samples", "uniform"] = "uniform"
        """Weights of the mean: equal (official), or n_k/n (FedMGP's port)."""
        length: int = Field(4, ge=1, le=64)
        """m, tokens of the context. Official: 4."""
        classes: Literal["own", "all"] = "own"
        """own: clients train among the classes that they hold (official); all: among all (FedMGP's
        port). Tests are always among all. A client with one class learns nothing from it."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """A generator."""
        return GeneratorClip(clip, class_names, self.hp.length)

    def client_update(
        self, client: Client, state: ClientState, down: GlobalModel
    ) -> tuple[TrainedModel, ClientState]:
        """Train among the client's classes."""
        model: Any = client.skeleton.model
        with model.among(held(client) if self.hp.classes == "own" else None):
            trained: tuple[Any, ClientState] = super().client_update(client, state, down)
        return trained

    def local_loss(self, model: Any, batch: Batch, down: GlobalModel, state: ClientState) -> Tensor:
        """Cross-entropy among the classes in scope."""
        if self.hp.classes == "own":
            scope = torch.tensor(model.classes, device=batch.labels.device)
            batch = batch._replace(labels=torch.searchsorted(scope, batch.labels))
        return super().local_loss(model, batch, down, state)


def held(client: Client) -> tuple[int, ...]:
    """The classes of a client's training images, sorted."""
    labels = client.train.all_labels[client.train.index]
    return tuple(sorted({int(label) for label in labels}))
