"""AlignFed: features align to fixed, uniformly spread points on the sphere; heads are averaged.

Zhu et al., "AlignFed" (2024), as described in FedTSP's supplementary C.4 and coded in its
repository.

    target step    -> uniformity, spread_targets
    L_align        -> alignment_loss
    lambda_t       -> schedule

Deviations:
    - The alignment softmax runs over the classes, as the text says ("pull to the own target, push
      from the others"); the repository's softmax over the batch is `softmax=batch`.
    - The targets are found by 2,000 steps of 0.1 * C, not 100,000 of 0.1: the energy's gradient
      shrinks with 1/C, and the optimum (the simplex, for d >= C - 1) is reached either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedray.algorithms.losses import cosine_matrix, similarity_analysis
from fedray.algorithms.personalised.shared_head import GlobalHead, HeadAveraging
from fedray.config import LossWeight, Temperature
from fedray.core import (
    Batch,
    Downlinks,
    Exchange,
    HyperParameters,
    LocalContext,
    Payload,
    Server,
    ServerState,
    algorithms,
    payload_field,
)
from fedray.evaluation.protocols import Analysis
from fedray.models import ClassifierOutput


@dataclass(frozen=True)
class Targets(Payload):
    """The fixed targets [C, d], sent once."""

    targets: Tensor = payload_field(
        "prototypes", "C d", reveals="nothing: the targets are drawn from the seed"
    )


@dataclass(frozen=True)
class SharedHead(GlobalHead):
    """The averaged head and this round's weight of the alignment."""

    weight: float = payload_field("statistics")


@algorithms.add
class AlignFed(HeadAveraging):
    """Features align to fixed targets on the sphere; heads are averaged."""

    name = "alignfed"
    title = "AlignFed"
    paper = "Zhu et al., 2024 (FedTSP supplementary C.4)"
    travels = "classifier heads"
    stacks = True
    downloads = (Targets, SharedHead)

    class HParams(HyperParameters):
        lambda_start: LossWeight = 20.0
        """λ_0, weight of the alignment in the first round; 0: heads are averaged and nothing is
        aligned."""
        lambda_end: LossWeight = 2.0
        """λ_T, what the weight falls to geometrically, reached after the last round."""
        temperature: Temperature = 1.0
        """Temperature of the alignment's cosines."""
        target_temperature: Temperature = 0.5
        """Temperature of the uniformity energy."""
        target_steps: int = Field(2000, ge=1, le=10**6)
        """SGD steps that spread the targets (repository: 100,000)."""
        softmax: Literal["class", "batch"] = "class"
        """Range of the alignment's softmax: the classes (text), or the batch (repository)."""

        @model_validator(mode="after")
        def _reaches_the_end(self) -> AlignFed.HParams:
            if self.lambda_start > 0 and self.lambda_end == 0:
                raise ValueError(
                    "lambda_end=0 is never reached geometrically; set algorithm.lambda_end > 0, "
                    "or lambda_start=0 to switch the alignment off"
                )
            return self

    hp: HParams

    def init_server(self, server: Server) -> ServerState:
        """Spread the targets once, and initialise the shared head like any head."""
        classes, d = server.setting.num_classes, server.setting.feature_dim
        random = server.streams.torch("alignfed")
        bound = d**-0.5
        weight = torch.empty(classes, d).uniform_(-bound, bound, generator=random)
        bias = torch.empty(classes).uniform_(-bound, bound, generator=random)
        initial = torch.empty(classes, d).uniform_(-1, 1, generator=random)
        targets = spread_targets(initial, self.hp.target_steps, self.hp.target_temperature)
        return {"targets": targets, "head": {"weight": weight, "bias": bias}}

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Give the targets to everyone who has joined."""
        targets = Targets(state["targets"])
        return exchange.give(state, "targets", dict.fromkeys(exchange.everyone, targets))

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        done = max(server.round - 1, 0) / self.setting.rounds
        weight = schedule(self.hp.lambda_start, self.hp.lambda_end, done)
        return dict.fromkeys(clients, SharedHead(state["head"], weight))

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        return similarity_analysis(state["targets"])

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        loss = super().loss(output, batch, local)
        weight: float = local.down.weight
        if weight == 0:
            return loss
        targets = local.state.memory["targets"]
        logits = cosine_matrix(output.features, targets) / self.hp.temperature
        return loss + weight * alignment_loss(logits, batch.labels, self.hp.softmax)


def uniformity(points: Tensor, temperature: float) -> Tensor:
    """Return the mean log of the points' summed exponential cosines, least when they are spread.

    Args:
        points: [C, d], any length.
        temperature: of the cosines.
    """
    cosines = cosine_matrix(points, points) / temperature
    return torch.logsumexp(cosines, dim=1).mean()


def spread_targets(initial: Tensor, steps: int, temperature: float) -> Tensor:
    """Spread C points on the unit sphere by SGD (lr 0.1) on `uniformity`.

    For d >= C - 1 the optimum is the simplex, whose cosines are -1/(C - 1).

    Args:
        initial: initial points [C, d].
        steps: number of SGD steps.
        temperature: of the energy.

    Returns:
        Unit vectors [C, d].
    """
    points = F.normalize(initial, dim=1).requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(uniformity(points, temperature), points)
        with torch.no_grad():
            # The energy's gradient shrinks with 1/C; a step of 0.1 C moves every point alike.
            points = F.normalize(points - 0.1 * len(points) * gradient, dim=1)
        points.requires_grad_()
    return points.detach()


def schedule(start: float, end: float, done: float) -> float:
    """Return λ_t = start * exp(ln(end/start) * t/T): geometric from start to end.

    Args:
        start: λ at t = 0; 0 switches the alignment off.
        end: λ at t = T.
        done: t/T, in [0, 1].
    """
    if start == 0 or end == 0:
        return 0.0
    return start * math.exp(math.log(end / start) * done)


def alignment_loss(logits: Tensor, labels: Tensor, over: Literal["class", "batch"]) -> Tensor:
    """Return L_align: a cross-entropy of features against targets.

    Args:
        logits: scaled cosines [B, C].
        labels: [B].
        over: "class" normalises each sample over the targets; "batch" each target over the
            samples and averages its own samples, absent classes counting as zero.
    """
    if over == "class":
        return F.cross_entropy(logits, labels)
    member = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    log_p = F.log_softmax(logits, dim=0)
    return (-(member * log_p).sum(0) / (member.sum(0) + 1e-6)).mean()
