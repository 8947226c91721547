"""FedMRL: features of a shared small model and of the client's own are fused, and read twice.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024,
arXiv:2406.00488.

    fusion r = P([G(x), F(x)]) -> FusedWithAuxiliary.forward  (models/auxiliary.py)
    l_G + l_F -> matryoshka_loss
    mean of the small models -> weighted_mean  (mean.py)

Deviations:
    - The official code of FedTSP, and HtFLlib, of which it is a fork, never save the projector, so
      that every round and every test starts from the same first draw: `official_bug=true`.
    - There the small model predicts with its batch's statistics (FedTSP) or with those of the first
      draw (HtFLlib); here it is in evaluation mode, with statistics averaged like weights.
    - FedTSP's fork clips the gradients of both models, not of the projector (`clip_norm=10`); in
      HtFLlib this line is commented out. `preset=official_code` is FedTSP's, with its loader.

Buffers: those of the small model are averaged like weights, counters take the maximum; those of the
own model stay with the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.averaging.fedavg import TrainedModel
from fedray.algorithms.distillation.auxiliary_averaging import AuxiliaryAveraging
from fedray.config import Tree
from fedray.core import Batch, ClientState, LocalContext, Trained, algorithms
from fedray.errors import UserError
from fedray.models import (
    AuxiliaryOutput,
    Classifier,
    ClassifierOutput,
    FusedWithAuxiliary,
    WithAuxiliary,
    undrawn_linear,
)


@algorithms.add
class FedMRL(AuxiliaryAveraging):
    """Fused features of a small averaged model and the client's own, read by both heads."""

    name = "fedmrl"
    title = "FedMRL"
    paper = "Yi et al., NeurIPS 2024, arXiv:2406.00488"
    clipped: ClassVar[Sequence[str]] = ("own", "auxiliary")

    class HParams(AuxiliaryAveraging.HParams):
        small_dim: int | None = Field(None, ge=1, le=65536)
        """d_1, width of the small model's features, at most model.feature_dim; null: a quarter of
        it. Official code: 128 of 512."""
        official_bug: StrictBool = False
        """Forget the trained projector after every round, as the official code does."""

        @classmethod
        def presets(cls, experiment: Tree) -> dict[str, Tree]:
            """Return `official_code`: the settings of FedTSP's repository, loader included."""
            official = super().presets(experiment)["official_code"]
            return {"official_code": {**official, "algorithm.official_bug": True}}

    hp: HParams

    def auxiliary_dim(self) -> int:
        """Return d_1.

        Raises:
            UserError: when the small model's features were wider than the fused ones.
        """
        d = self.setting.feature_dim
        width = max(d // 4, 1) if self.hp.small_dim is None else self.hp.small_dim
        if width > d:
            raise UserError(
                f"algorithm.small_dim={width} asks for the first {width} of "
                f"model.feature_dim={d} fused features; set it to at most {d}"
            )
        return width

    def with_auxiliary(self, own: Classifier, auxiliary: Classifier) -> WithAuxiliary:
        """Return both models and the projector P."""
        d = self.setting.feature_dim
        projector = undrawn_linear(self.auxiliary_dim() + d, d)
        return FusedWithAuxiliary(own, auxiliary, projector)

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        assert isinstance(output, AuxiliaryOutput)
        return matryoshka_loss(output.logits, output.auxiliary.logits, batch.labels)

    def finish(self, local: LocalContext, trained: Trained) -> tuple[TrainedModel, ClientState]:
        """Upload the small model like FedAvg; with `official_bug` restore the projector."""
        update, kept = super().finish(local, trained)
        if not self.hp.official_bug:
            return update, kept
        before = {n: t for n, t in local.state.model.items() if n.startswith("joint.")}
        return update, replace(kept, model={**kept.model, **before})


def matryoshka_loss(logits: Tensor, small_logits: Tensor, labels: Tensor) -> Tensor:
    """Return l_F + l_G: cross-entropy of both heads, each of its part of the fused features.

    Args:
        logits: of the client's head on r [B, C].
        small_logits: of the small model's head on r[:, :d_1] [B, C].
        labels: [B].
    """
    return F.cross_entropy(logits, labels) + F.cross_entropy(small_logits, labels)
