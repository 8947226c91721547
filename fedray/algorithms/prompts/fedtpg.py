"""FedTPG: a shared network generates the context from the names of a client's classes.

Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models", ICLR 2024,
arXiv:2310.06123. Official code: github.com/boschresearch/FedTPG.

    prompt generator -> PromptGenerator
    context of the given classes -> GeneratorClip.text_features
    local loss over the client's classes -> FedTPG.loss
    averaging, equal weights -> combined_rows, mean_of (core/sums.py)

Deviations:
    - The experiment's optimiser and schedule are used; official code: SGD with a learning rate of
      0.003 and a cosine schedule, 500 rounds.
    - The network has 4,206,080 parameters for ViT-B/16. FedMGP's port also counts a context that is
      never used (Table 3: 4,208,128).
    - By default, images are not cropped randomly; see promptfl.py.
"""

from math import sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.mean import Weights
from fedray.core import Batch, Client, LocalContext, PromptMethod, Trained, method
from fedray.language.encoders.base import same_bits
from fedray.models import ClassifierOutput, initialise, undrawn_linear
from fedray.models.prompted import INIT_STD, PromptedClip

HEADS = 4


class PromptGenerator(nn.Module):
    """A network of queries that attend to text features, and a gated feed-forward layer.

    x = attention(LN(S), LN(E), LN(E)), without a residual connection; the context is x + FF(x) with
    FF = LN, Linear to 8w, GEGLU, Linear to w. Qiu et al., ICLR 2024, arXiv:2310.06123.

    Args:
        length: m, the number of queries S.
        width: w, the width of tokens and of the attention.
        dim: d, the width of text features.
    """

    def __init__(self, length: int, width: int, dim: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(length, width))
        self.norm_queries = nn.LayerNorm(width)
        self.norm_names = nn.LayerNorm(dim)
        self.to_queries = undrawn_linear(width, width)
        self.to_keys = undrawn_linear(dim, width)
        self.to_values = undrawn_linear(dim, width)
        self.out = undrawn_linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.widen = undrawn_linear(width, 8 * width)
        self.narrow = undrawn_linear(4 * width, width)

    def forward(self, names: Tensor) -> Tensor:
        """Return a context [m, w] for the text features E [K, d] of class names."""
        names = self.norm_names(names)
        queries = self.to_queries(self.norm_queries(self.queries))
        x = self.out(_attention(queries, self.to_keys(names), self.to_values(names)))
        wide, gate = self.widen(self.norm(x)).chunk(2, dim=-1)
        context: Tensor = x + self.narrow(wide * F.gelu(gate))
        return context

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw S from N(0, 0.02²), and the network by PyTorch's defaults for such layers."""
        for norm in (self.norm_queries, self.norm_names, self.norm):
            norm.reset_parameters()  # sets constants, draws nothing
        for layer in (self.out, self.widen, self.narrow):
            initialise(layer, generator)
        maps = (self.to_queries, self.to_keys, self.to_values)
        rows, columns = sum(len(layer.weight) for layer in maps), maps[0].weight.shape[1]
        for layer in maps:  # as nn.MultiheadAttention: Xavier for the stacked maps, zero biases
            bound = sqrt(6 / (rows + columns))
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.zero_()
        self.out.bias.zero_()
        self.queries.normal_(0.0, INIT_STD, generator=generator)


def _attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return attention with `HEADS` heads: queries [m, w], keys and values [K, w] to [m, w]."""

    def heads(x: Tensor) -> Tensor:
        return x.reshape(1, len(x), HEADS, -1).transpose(1, 2)

    with same_bits(queries.device):
        mixed = F.scaled_dot_product_attention(heads(queries), heads(keys), heads(values))
    return mixed.transpose(1, 2).reshape(len(queries), -1)


class GeneratorClip(PromptedClip):
    """A CLIP with a generated context before every class name."""

    def make_prompts(self, hparams: Any) -> None:
        self.generator = PromptGenerator(hparams.length, self.clip.text.token_width, self.clip.dim)

    def initialise(self, generator: torch.Generator) -> None:
        self.generator.initialise(generator)

    def text_features(self) -> Tensor:
        """Return text features [K, d] under the context generated from the classes in scope."""
        return self.texts_after(self.generator(self.fixed_texts("{}")))


@method("fedtpg", "FedTPG", "Qiu et al., ICLR 2024, arXiv:2310.06123")
class FedTPG(PromptMethod, FedAvg):
    """FedAvg of a prompt generator, which is counted as weights."""

    clip_model = GeneratorClip

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (official code), or samples, n_k/n (FedMGP's
    port)."""
    length: int = Field(4, ge=1, le=64)
    """m, tokens of the context. Official code: 4."""
    classes: Literal["own", "all"] = "own"
    """Classes in the local softmax: own, those that the client holds (official code), or all
    (FedMGP's port). Tests use all classes. With a single class, loss and gradient are 0."""

    def train(self, local: LocalContext) -> Trained:
        """Train with a softmax over the classes that the client holds, or over all classes."""
        classes = held_classes(local.client) if self.classes == "own" else None
        with local.model.class_subset(classes):
            return super().train(local)

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropy over the class subset."""
        columns = torch.searchsorted(local.model.scope, batch.labels)
        return super().loss(output, batch._replace(labels=columns), local)


def held_classes(client: Client) -> tuple[int, ...]:
    """Return the classes of a client's training images, sorted."""
    return tuple(client.class_counts.nonzero().flatten().tolist())
