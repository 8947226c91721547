"""FedKD: mutual distillation with a shared small model, whose updates are sent as SVD factors.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022, arXiv:2108.13323. The paper's mentor is the client's own model here, and its
mentee the small model.

    L of either model -> adaptive_loss
    hidden states, MSE(H, W_h H_s) -> FedKD.loss
    T(t) -> energy
    smallest rank with energy above T -> energy_rank
    U, Sigma, V -> factorise, restore

A client sends the change of its small model as factors; the server adds the mean change, and sends
the whole small model.

Deviations:
    - The paper and its code factorise the server's step, too.
    - Vectors, and tensors whose factors would not be smaller, are sent whole.
    - The paper has no convolutions. Here a convolution is factorised as one matrix
      [out, in * kh * kw]. HtFLlib factorises it as kh x kw matrices with one rank for the whole
      layer; factors of 3x3 kernels are then smaller at rank 1 only.
    - The rank may be full. The authors' code and HtFLlib consider smaller ranks only; if none holds
      enough energy, their rank is 0 and the update is lost.
    - FedTSP's repository sends the whole small model (`compress=false`), averages the KL divergence
      over images and classes (`kl=entries`), lets the gradients of both losses reach both models
      (`teacher_gradients=true`) and clips gradients (`clip_norm=10`). `preset=official_code` sets
      all of these.
    - HtFLlib factorises weights, not updates, and averages no buffers.

Buffers: those of the small model are never factorised, and are averaged like weights; counters take
the maximum. Those of the client's own model stay with the client.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import select
from fedray.algorithms.distillation.auxiliary_averaging import MutualLearning
from fedray.algorithms.losses import kl_divergence
from fedray.config import Tree
from fedray.core import Batch, LocalContext, Server, ServerState, StepResult
from fedray.models import WithAuxiliary, buffer_names, undrawn_linear

EPS = 1e-6


def restored(method: Any, upload: Any) -> core.Tensors:
    """Return n_k times the update, restored from its factors."""
    weight = method.weight(upload)
    return {name: restore(f).double() * weight for name, f in upload.update.items()}


@core.method("fedkd", "FedKD", "Wu et al., Nature Communications 2022, arXiv:2108.13323")
class FedKD(MutualLearning):
    """Adaptive mutual distillation with a small model, whose updates are sent as SVD factors."""

    version = 2  # the server's step is not factorised
    official_code: ClassVar[Tree] = {**MutualLearning.official_code, "algorithm.compress": False}
    up: ClassVar[Any] = {
        "model": None,
        "update": core.sent(
            "weights",
            "the client's update of the small model (membership; after few steps on few images, "
            "images), to the precision of `energy_start` and `energy_end`",
            combine=restored,
        ),
        "buffers": core.sent("weights", combine="mean"),
    }

    energy_start: float = Field(0.95, ge=0, le=1)
    """T_start, share of an update's energy that its factors keep in the first round; 1 keeps
    all. FedTSP's comparison: 0.95."""
    energy_end: float = Field(0.95, ge=0, le=1)
    """T_end, share of the energy after the last round; the share changes linearly from T_start.
    FedTSP's comparison: 0.95."""
    compress: StrictBool = True
    """Whether updates are sent as factors; false: as whole tensors (FedTSP's repository)."""

    def with_auxiliary(self, own: core.Classifier, auxiliary: core.Classifier) -> WithAuxiliary:
        """Return both models and W_h, which maps the small model's features to the client's."""
        d = self.setting.feature_dim
        return WithAuxiliary(own, auxiliary, undrawn_linear(d, d, bias=False))

    def factors(self, update: Tensor, round_: int) -> core.Tensors:
        """Return the factors of an update for round `round_`, on the CPU."""
        done = max(round_ - 1, 0) / self.setting.rounds
        share = energy(self.energy_start, self.energy_end, done) if self.compress else None
        return factorise(update, share)

    def server_step(self, state: ServerState, total: core.Total, server: Server) -> ServerState:
        """Add the mean update to the small model; average buffers as FedAvg does."""
        model, updates = state["model"], total["update"]
        means = core.mean_of({**updates, **total["buffers"]}, total["weight"], model)
        moved = {name: model[name] + means[name].reshape(model[name].shape) for name in updates}
        return {"model": {**means, **moved}}

    def loss(self, output: Any, batch: Batch, local: LocalContext) -> Tensor:
        losses, model = list[Tensor](), cast(WithAuxiliary, local.model)
        for student, other in ((output, output.auxiliary), (output.auxiliary, output)):
            teacher = self.teacher(other)
            large, small = (student, teacher) if student is output else (teacher, student)
            hidden = F.mse_loss(large.features.float(), model.joint(small.features).float())
            distance = kl_divergence(student.logits, teacher.logits, self.kl) + hidden
            task, other_task = (F.cross_entropy(o.logits, batch.labels) for o in (student, teacher))
            losses.append(adaptive_loss(task, other_task, distance))
        return losses[0] + losses[1]

    def finish(self, local: LocalContext, trained: core.Trained) -> StepResult:
        """Upload the change of the small model and its buffers; keep the client's own model."""
        upload, state = super().finish(local, trained)
        small, buffers = upload.pop("model"), buffer_names(local.model)
        update = {
            name: self.factors((small[name] - tensor).cpu(), local.client.round)
            for name, tensor in local.down.model.items()
            if name not in buffers
        }
        return {**upload, "update": update, "buffers": select(small, buffers)}, state


def adaptive_loss(task: Tensor, other: Tensor, distance: Tensor) -> Tensor:
    """Return L = L_task + (L_KL + L_hidden) / (L_task + L_task of the other model).

    The larger the task losses are, the less the models learn from each other. `distance` is the KL
    divergence plus the squared distance of the features.
    """
    return task + distance / (task + other).clamp_min(EPS)


def energy(start: float, end: float, done: float) -> float:
    """Return T(t) = T_start + (T_end - T_start) t after the share t, `done`, of the rounds."""
    return start + (end - start) * done


def energy_rank(singular: Tensor, share: float) -> int:
    """Return the smallest K with sum_{i<=K} sigma_i^2 > T sum_i sigma_i^2, else the full rank.

    `singular` is sigma [k], descending; `share` is T.
    """
    squares = singular.double().square()
    enough = (squares.cumsum(0) > share * squares.sum()).nonzero()
    return int(enough[0]) + 1 if len(enough) else len(squares)


def factorise(tensor: Tensor, share: float | None) -> core.Tensors:
    """Return "u" [m, K], "s" [K] and "v" [K, n] for the least K with the `share` T of the energy.

    A tensor of more than two axes counts as a matrix [m, n]. Without a share, or if the factors
    would not be smaller, "whole" is the tensor.
    """
    whole = {"whole": tensor}
    if share is None or tensor.dim() < 2 or not tensor.isfinite().all() or not tensor.any():
        return whole
    u, s, v = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
    k = energy_rank(s, share)
    factors = {"u": u[:, :k], "s": s[:k], "v": v[:k]}
    if sum(factor.numel() for factor in factors.values()) >= tensor.numel():
        return whole
    return {name: factor.contiguous() for name, factor in factors.items()}


def restore(factors: Mapping[str, Tensor]) -> Tensor:
    """Return U Sigma V [m, n], or a whole tensor as a matrix; a vector stays one."""
    if "whole" in factors:
        whole = factors["whole"]
        return whole.flatten(1) if whole.dim() > 1 else whole
    product: Tensor = (factors["u"] * factors["s"]) @ factors["v"]
    return product
