"""FedKD: mutual distillation with a shared small model, whose updates are sent as SVD factors.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022, arXiv:2108.13323. The paper's mentor is the client's own model here, and its
mentee the small model.

    L of either model -> adaptive_loss
    hidden states, MSE(H, W_h H_s) -> FedKD.loss
    T(t) -> energy
    smallest rank with energy above T -> rank
    U, Sigma, V -> factorise, restore

Both directions carry updates, as in the paper and its code: a client sends the change of its small
model, and the server sends the mean change. A client that did not take part in the previous round
receives the whole small model. With `wire.down_bits` below 32, the clients' small models drift from
the server's by the rounding of every step.

Deviations:
    - Vectors, and tensors whose factors would not be smaller, are sent whole.
    - The paper has no convolutions. Here a convolution is factorised as one matrix
      [out, in * kh * kw]. HtFLlib factorises it as kh x kw matrices with one rank for the whole
      layer (`convolutions=kernels`); factors of 3x3 kernels are then smaller at rank 1 only.
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

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import GlobalModel, select
from fedray.algorithms.distillation.auxiliary_averaging import MutualLearning
from fedray.algorithms.losses import kl_divergence
from fedray.algorithms.mean import client_weights, weighted_mean
from fedray.config import Tree
from fedray.models import (
    AuxiliaryOutput,
    Classifier,
    ClassifierOutput,
    WithAuxiliary,
    tensor_names,
    undrawn_linear,
)

Convolutions: TypeAlias = Literal["matrices", "kernels"]
EPS = 1e-6


@dataclass(frozen=True)
class SmallModel(GlobalModel):
    """The whole small model, and its version: the number of steps of the server."""

    version: int = core.payload_field("statistics")


@dataclass(frozen=True)
class SmallModelStep(core.Payload):
    """The server's last step of the small model, the model's buffers, and its new version."""

    step: Mapping[str, Mapping[str, Tensor]] = core.payload_field(
        "weights",
        reveals="the mean of the participants' updates; of two participants, each knows the "
        "other's",
    )
    buffers: Mapping[str, Tensor] = core.payload_field("statistics")
    version: int = core.payload_field("statistics")


@dataclass(frozen=True)
class SmallModelUpdate(core.Payload):
    """The change of a client's small model, and its buffers."""

    update: Mapping[str, Mapping[str, Tensor]] = core.payload_field(
        "weights",
        reveals="the client's update of the small model (membership; after few steps on few "
        "images, images), to the precision of `energy_start` and `energy_end`",
    )
    buffers: Mapping[str, Tensor] = core.payload_field("statistics")
    samples: int = core.payload_field("statistics", reveals="how many images the client has")

    def check(self, call: core.Call) -> None:
        """Check that the update has each parameter of the small model, whole or as factors."""
        assert isinstance(call.algorithm, FedKD)
        tensors, model = call.client.skeleton.tensors, call.client.skeleton.model
        names = call.algorithm.shared(model) - self.buffers.keys()
        update = {
            n: {"whole": restore(f, tensors[n])} for n, f in self.update.items() if n in names
        }
        expected = {name: {"whole": tensors[name]} for name in sorted(names)}
        replace(self, update=update).require_like("update", expected)
        self.require_within("samples", 1, call.samples)


@core.algorithms.add
class FedKD(MutualLearning):
    """Adaptive mutual distillation with a small model, whose updates are sent as SVD factors."""

    name = "fedkd"
    title = "FedKD"
    paper = "Wu et al., Nature Communications 2022, arXiv:2108.13323"
    travels = "factors of a small model's updates"
    uploads = (SmallModelUpdate,)
    downloads = (SmallModel, SmallModelStep)
    equal_mean: ClassVar[Mapping[str, object] | None] = {"weights": "uniform", "compress": False}

    class HParams(MutualLearning.HParams):
        energy_start: float = Field(0.95, ge=0, le=1)
        """T_start, share of an update's energy that its factors keep in the first round; 1 keeps
        all. FedTSP's comparison: 0.95."""
        energy_end: float = Field(0.95, ge=0, le=1)
        """T_end, share of the energy after the last round; the share changes linearly from T_start.
        FedTSP's comparison: 0.95."""
        compress: StrictBool = True
        """Whether updates are sent as factors; false: as whole tensors (FedTSP's repository)."""
        convolutions: Convolutions = "matrices"
        """How a convolution is factorised: matrices, as one matrix [out, in * kh * kw], or kernels,
        as a matrix kh x kw for every pair of channels (HtFLlib)."""

        @classmethod
        def presets(cls, experiment: Tree) -> dict[str, Tree]:
            """Return `official_code`, the settings of FedTSP's repository and its data loader."""
            official = super().presets(experiment)["official_code"]
            return {"official_code": {**official, "algorithm.compress": False}}

    hp: HParams

    def with_auxiliary(self, own: Classifier, auxiliary: Classifier) -> WithAuxiliary:
        """Return both models and W_h, which maps the small model's features to the client's."""
        d = self.setting.feature_dim
        return WithAuxiliary(own, auxiliary, undrawn_linear(d, d, bias=False))

    def factors(self, update: Tensor, round_: int) -> core.Tensors:
        """Return the factors of an update for round `round_`, on the CPU."""
        hp, done = self.hp, max(round_ - 1, 0) / self.setting.rounds
        share = energy(hp.energy_start, hp.energy_end, done) if hp.compress else None
        return factorise(update, share, hp.convolutions)

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return version 0 of the small model, which no client holds."""
        return {**super().init_server(server), "version": torch.tensor(0)}

    def round(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Run one round; clients that replied hold the version that the server sent."""
        down = self.downlink(state, exchange.participants, exchange.server)
        uplinks = exchange.call("client_update", down)
        state = exchange.acknowledge(state, "model", int(state["version"]))
        return self.server_update(state, uplinks, exchange.server)

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Send the last step to clients with the previous version, and others the whole model."""
        version, empty = int(state["version"]), server.empty(server.architectures[0])
        whole = SmallModel.of(empty, state["model"], version=version)
        if version == 0:
            return dict.fromkeys(clients, whole)
        step = SmallModelStep(state["step"], whole.buffers, version)
        held = core.held_versions(state, "model", self.setting).tolist()
        return {client: step if held[client] == version - 1 else whole for client in clients}

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Move the small model by the factors of the mean update, as clients will."""
        if not uplinks:
            return state
        model, weights = state["model"], client_weights(uplinks, self.hp.weights)
        updates = {
            client: {name: restore(f, model[name]) for name, f in upload.update.items()}
            for client, upload in uplinks.items()
        }
        buffers = {client: upload.buffers for client, upload in uplinks.items()}
        means = weighted_mean(weights, updates)
        step = {name: self.factors(mean, server.round) for name, mean in means.items()}
        return {
            "model": {**apply_step(model, step), **weighted_mean(weights, buffers)},
            "step": step,
            "version": state["version"] + 1,
        }

    def init_client(self, client: core.Client) -> core.ClientState:
        model = client.skeleton.model
        return core.ClientState(select(client.initial(), tensor_names(model) - self.shared(model)))

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the client's own model and the server's small one; keep the latter in the memory.

        Raises:
            ValueError: if the client does not hold the version that the step starts from.
        """
        small = down.weights if isinstance(down, SmallModel) else _follow_step(state, down)
        memory = {"small": small, "version": torch.tensor(down.version)}
        model = client.load({**state.model, **small, **down.buffers})
        return core.LocalContext(client, model, replace(state, memory=memory), down)

    def loss(self, output: ClassifierOutput, batch: core.Batch, local: core.LocalContext) -> Tensor:
        assert isinstance(output, AuxiliaryOutput)
        assert isinstance(local.model, WithAuxiliary)
        losses = []
        for student, other in ((output, output.auxiliary), (output.auxiliary, output)):
            teacher = self.teacher(other)
            large, small = (student, teacher) if student is output else (teacher, student)
            hidden = F.mse_loss(large.features.float(), local.model.joint(small.features).float())
            distance = kl_divergence(student.logits, teacher.logits, self.hp.kl) + hidden
            task, teacher_task = (
                F.cross_entropy(o.logits, batch.labels) for o in (student, teacher)
            )
            losses.append(adaptive_loss(task, teacher_task, distance))
        return losses[0] + losses[1]

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[SmallModelUpdate, core.ClientState]:
        """Upload the change of the small model; keep the client's model and the server's small."""
        client, before = local.client, local.state.memory["small"]
        update = {
            name: self.factors((trained.tensors[name] - tensor).cpu(), client.round)
            for name, tensor in before.items()
        }
        buffers = select(trained.tensors, local.down.buffers)
        shared = self.shared(local.model)
        tensors = {n: t for n, t in client.save(local.model).items() if n not in shared}
        sent = SmallModelUpdate(update, buffers, len(client.train))
        return sent, core.ClientState(tensors, local.state.memory)


def _follow_step(state: core.ClientState, down: SmallModelStep) -> core.Tensors:
    """Return the client's small model after the server's step.

    Raises:
        ValueError: if the client does not hold the version that the step starts from.
    """
    held = int(state.memory.get("version", torch.tensor(-1)))
    if held not in (down.version - 1, down.version):
        raise ValueError(f"step {down.version} cannot follow on step {held}")
    small: core.Tensors = state.memory["small"]
    return small if held == down.version else apply_step(small, down.step)


def apply_step(
    model: Mapping[str, Tensor], step: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the parameters plus a step in factors; server and clients get equal results."""
    return {name: model[name] + restore(factors, model[name]) for name, factors in step.items()}


def adaptive_loss(task: Tensor, other: Tensor, distance: Tensor) -> Tensor:
    """Return L = L_task + (L_KL + L_hidden) / (L_task + L_task of the other model).

    The larger the task losses are, the less the models learn from each other.

    Args:
        task: the cross-entropy of this model.
        other: the cross-entropy of the other model.
        distance: the KL divergence plus the squared distance of the features.
    """
    return task + distance / (task + other).clamp_min(EPS)


def energy(start: float, end: float, done: float) -> float:
    """Return T(t) = T_start + (T_end - T_start) t.

    Args:
        start: T_start.
        end: T_end.
        done: t, the share of completed rounds, in [0, 1].
    """
    return start + (end - start) * done


def rank(singular: Tensor, share: float) -> int:
    """Return the smallest K with sum_{i<=K} sigma_i^2 > T sum_i sigma_i^2, else the full rank.

    Args:
        singular: sigma, descending [..., k]; for a batch of matrices, the sums run over all.
        share: T.
    """
    squares = singular.double().square().reshape(-1, singular.shape[-1]).sum(0)
    enough = (squares.cumsum(0) > share * squares.sum()).nonzero()
    return int(enough[0]) + 1 if len(enough) else len(squares)


def as_matrices(tensor: Tensor, convolutions: Convolutions) -> Tensor:
    """Return a tensor of at least two axes as one matrix [m, n], or a convolution's kernels."""
    return tensor if tensor.dim() == 4 and convolutions == "kernels" else tensor.flatten(1)


def factorise(tensor: Tensor, share: float | None, convolutions: Convolutions) -> core.Tensors:
    """Return U [..., m, K], Sigma [..., K] and V [..., K, n] for the smallest K with enough energy.

    Args:
        tensor: a tensor on the CPU.
        share: T; None returns the whole tensor.
        convolutions: see `FedKD.HParams.convolutions`.

    Returns:
        "u", "s" and "v", or "whole" if the factors would not be smaller than the tensor.
    """
    whole = {"whole": tensor}
    if share is None or tensor.dim() < 2 or not tensor.isfinite().all() or not tensor.any():
        return whole
    u, s, v = torch.linalg.svd(as_matrices(tensor, convolutions), full_matrices=False)
    k = rank(s, share)
    factors = {"u": u[..., :k], "s": s[..., :k], "v": v[..., :k, :]}
    if sum(factor.numel() for factor in factors.values()) >= tensor.numel():
        return whole
    return {name: factor.contiguous() for name, factor in factors.items()}


def restore(factors: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return U Sigma V, in the shape of `like`."""
    if "whole" in factors:
        return factors["whole"]
    product: Tensor = (factors["u"] * factors["s"].unsqueeze(-2)) @ factors["v"]
    return product.reshape(like.shape)
