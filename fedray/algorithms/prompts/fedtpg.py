"""FedTPG: a shared network generates the context from the names of a client's classes.

Qiu et al., "Federated Text-driven Prompt Generation for Vision-Language Models", ICLR 2024,
arXiv:2310.06123. Official code: github.com/boschresearch/FedTPG.

    prompt generator -> PromptGenerator  (models/prompted/generator.py)
    context of the given classes -> GeneratorClip.text_features  (models/prompted/generator.py)
    local loss over the client's classes -> FedTPG.loss
    averaging, equal weights -> weighted_mean  (mean.py)

Deviations:
    - The experiment's optimiser and schedule are used; official code: SGD with a learning rate of
      0.003 and a cosine schedule, 500 rounds.
    - The network has 4,206,080 parameters for ViT-B/16. FedMGP's port also counts a context that is
      never used (Table 3: 4,208,128).
    - By default, images are not cropped randomly; see promptfl.py.
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
    """FedAvg of a prompt generator, which is counted as weights."""

    name = "fedtpg"
    title = "FedTPG"
    paper = "Qiu et al., ICLR 2024, arXiv:2310.06123"
    travels = "a prompt generator"

    class HParams(FedAvg.HParams):
        weights: Weights = "uniform"
        """Client weights in the mean: uniform, 1/K (official code), or samples, n_k/n (FedMGP's
        port)."""
        length: int = Field(4, ge=1, le=64)
        """m, tokens of the context. Official code: 4."""
        classes: Literal["own", "all"] = "own"
        """Classes in the local softmax: own, those that the client holds (official code), or all
        (FedMGP's port). Tests use all classes. With a single class, loss and gradient are 0."""

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return GeneratorClip(clip, class_names, self.hp.length)

    def train(self, local: LocalContext) -> Trained:
        """Train with a softmax over the classes that the client holds, or over all classes."""
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
