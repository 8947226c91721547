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

from collections.abc import Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.distillation.auxiliary_averaging import AuxiliaryAveraging
from fedray.base.errors import UserError
from fedray.config import Tree
from fedray.core import Batch, Classifier, ClientState, LocalContext, StepResult, Trained, method
from fedray.models import FusedWithAuxiliary, WithAuxiliary, undrawn_linear


@method("fedmrl", "FedMRL", "Yi et al., NeurIPS 2024, arXiv:2406.00488")
class FedMRL(AuxiliaryAveraging):
    """Fused features of an averaged small model and the client's own, classified by both heads."""

    clipped: ClassVar[Sequence[str]] = ("own", "auxiliary")
    official_code: ClassVar[Tree] = {
        **AuxiliaryAveraging.official_code,
        "algorithm.official_bug": True,
    }

    small_dim: int | None = Field(None, ge=1, le=65536)
    """d_1, width of the small model's features, at most model.feature_dim; null: a quarter of
    model.feature_dim. Official code: 128 of 512."""
    official_bug: StrictBool = False
    """Whether the trained projector is discarded after every round, as in the official code."""

    def auxiliary_dim(self) -> int:
        """Return d_1, at most the width of the fused features."""
        d = self.setting.feature_dim
        width = max(d // 4, 1) if self.small_dim is None else self.small_dim
        if width > d:
            raise UserError(f"algorithm.small_dim={width} exceeds model.feature_dim={d}")
        return width

    def with_auxiliary(self, own: Classifier, auxiliary: Classifier) -> WithAuxiliary:
        """Return both models and the projector P."""
        d = self.setting.feature_dim
        return FusedWithAuxiliary(own, auxiliary, undrawn_linear(self.auxiliary_dim() + d, d))

    def loss(self, output: Any, batch: Batch, local: LocalContext) -> Tensor:
        return matryoshka_loss(output.logits, output.auxiliary.logits, batch.labels)

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        """Upload the small model as FedAvg does; with `official_bug`, restore the projector."""
        upload, state = super().finish(local, trained)
        restored = local.state.model if self.official_bug else {}
        before = {name: t for name, t in restored.items() if name.startswith("joint.")}
        return upload, ClientState({**state.model, **before}, state.memory)


def matryoshka_loss(logits: Tensor, small_logits: Tensor, labels: Tensor) -> Tensor:
    """Return l_F + l_G, the cross-entropies of both heads on their parts of the fused features.

    The client's head reads r, the small model's head r[:, :d_1]; logits are [B, C], labels [B].
    """
    return F.cross_entropy(logits, labels) + F.cross_entropy(small_logits, labels)
