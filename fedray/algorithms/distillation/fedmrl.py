"""FedMRL: features of a shared small model and the client's own are fused and classified twice.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024,
arXiv:2406.00488.

    fusion r = P([G(x), F(x)]) -> FusedWithAuxiliary.forward  (models/auxiliary.py)
    l_G + l_F -> matryoshka_loss
    mean of the small models -> combined_rows, mean_of (core/sums.py)

Deviations:
    - FedTSP's code, a fork of HtFLlib, and HtFLlib never save the projector, so that every round
      and every test starts from its initial weights (`official_bug=true`).
    - The small model predicts in evaluation mode, with statistics that are averaged like weights.
      In FedTSP's code it predicts with the statistics of the batch, in HtFLlib with the initial
      ones.
    - FedTSP's code clips the gradients of both models, but not of the projector (`clip_norm=10`);
      in HtFLlib this line is commented out. `preset=official_code` sets FedTSP's values, with its
      data loader.

Buffers: those of the small model are averaged like weights; counters take the maximum. Those of the
client's own model stay with the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.distillation.auxiliary_averaging import AuxiliaryAveraging
from fedray.config import Tree
from fedray.core import Batch, ClientState, LocalContext, Trained, method
from fedray.errors import UserError
from fedray.models import (
    AuxiliaryOutput,
    Classifier,
    ClassifierOutput,
    FusedWithAuxiliary,
    WithAuxiliary,
    undrawn_linear,
)


@method("fedmrl", "FedMRL", "Yi et al., NeurIPS 2024, arXiv:2406.00488")
class FedMRL(AuxiliaryAveraging):
    """Fused features of an averaged small model and the client's own, classified by both heads."""

    clipped: ClassVar[Sequence[str]] = ("own", "auxiliary")

    small_dim: int | None = Field(None, ge=1, le=65536)
    """d_1, width of the small model's features, at most model.feature_dim; null: a quarter of
    model.feature_dim. Official code: 128 of 512."""
    official_bug: StrictBool = False
    """Whether the trained projector is discarded after every round, as in the official code."""

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        """Return `official_code`, the settings of FedTSP's repository and its data loader."""
        official = super().presets(experiment)["official_code"]
        return {"official_code": {**official, "algorithm.official_bug": True}}

    def auxiliary_dim(self) -> int:
        """Return d_1.

        Raises:
            UserError: if the small model's features are wider than the fused features.
        """
        d = self.setting.feature_dim
        width = max(d // 4, 1) if self.small_dim is None else self.small_dim
        if width > d:
            raise UserError(
                f"algorithm.small_dim={width} is larger than model.feature_dim={d}, the number of "
                f"fused features; set algorithm.small_dim to at most {d}"
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

    def finish(self, local: LocalContext, trained: Trained) -> tuple[Any, ClientState]:
        """Upload the small model as FedAvg does; with `official_bug`, restore the projector."""
        update, next_state = super().finish(local, trained)
        if not self.official_bug:
            return update, next_state
        before = {n: t for n, t in local.state.model.items() if n.startswith("joint.")}
        return update, replace(next_state, model={**next_state.model, **before})


def matryoshka_loss(logits: Tensor, small_logits: Tensor, labels: Tensor) -> Tensor:
    """Return l_F + l_G, the cross-entropies of both heads on their parts of the fused features.

    Args:
        logits: logits of the client's head on r [B, C].
        small_logits: logits of the small model's head on r[:, :d_1] [B, C].
        labels: class labels [B].
    """
    return F.cross_entropy(logits, labels) + F.cross_entropy(small_logits, labels)
