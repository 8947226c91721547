"""FedTPG: one network, shared by all, writes the context from the names of a client's classes.

Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models", ICLR 2024,
arXiv:2310.06123. Official code: github.com/boschresearch/FedTPG.

    prompt generator -> PromptGenerator  (models/prompted/generator.py)
    context of the given classes -> GeneratorClip.text_features  (models/prompted/generator.py)
    local loss over the client's classes -> FedTPG.loss
    averaging, equal weights -> weighted_mean  (mean.py)

Deviations:
    - The experiment's optimiser and schedule; official: SGD, lr 0.003, cosine, 500 rounds.
    - FedMGP's port adds a context that is never used to what it counts (Table 3: 4,208,128); here
      it is the network alone, 4,206,080 for ViT-B/16.
    - No random crops, see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.mean import Weights
from fedray.core import (
    Batch,
    Client,
    LocalContext,
    PromptMethod,
    Trained,
    algorithms,
)
from fedray.models import ClassifierOutput
from fedray.models.clip import FrozenClip
from fedray.models.prompted import GeneratorClip, PromptedClip


@algorithms.add
class FedTPG(PromptMethod, FedAvg):
    """FedAvg of a prompt generator, counted as weights: it is no prompt."""

    name = "fedtpg"
    title = "FedTPG"
    paper = "Qiu et al., ICLR 2024, arXiv:2310.06123"
    travels = "a prompt generator"

    class HParams(FedAvg.HParams):
        weights: Weights = "uniform"
        """Weights of the mean: equal (official), or n_k/n (FedMGP's port)."""
        length: int = Field(4, ge=1, le=64)
        """m, tokens of the context. Official: 4."""
        classes: Literal["own", "all"] = "own"
        """Classes in the local softmax. own: those that the client holds (official); all: all
        (FedMGP's port). Tests have all classes. With one class the loss and its gradient are 0."""

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return GeneratorClip(clip, class_names, self.hp.length)

    def train(self, local: LocalContext) -> Trained:
        """Train on the subset of classes that the client holds."""
        assert isinstance(local.model, PromptedClip)
        classes = held_classes(local.client) if self.hp.classes == "own" else None
        with local.model.class_subset(classes):
            return super().train(local)

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropy over the class subset."""
        assert isinstance(local.model, PromptedClip)
        columns = torch.searchsorted(local.model.scope, batch.labels)
        return super().loss(output, batch._replace(labels=columns), local)


def held_classes(client: Client) -> tuple[int, ...]:
    """Return the classes of a client's training images, sorted."""
    return tuple(client.class_counts().nonzero().flatten().tolist())
