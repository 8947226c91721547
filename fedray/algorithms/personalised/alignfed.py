"""AlignFed: features align with fixed points spread over the sphere; heads are averaged.

Zhu et al., "AlignFed" (2024), as described in FedTSP's supplementary C.4 and implemented in
FedTSP's repository.

    target step    -> uniformity, spread_targets
    L_align        -> alignment_loss
    lambda_t       -> schedule

Deviations:
    - The softmax of the alignment runs over the classes, as the text describes ("pull to the own
      target, push from the others"); the repository's softmax runs over the batch
      (`softmax=batch`).
    - The targets are optimised by 2,000 steps of 0.1 * C instead of 100,000 steps of 0.1, because
      the energy's gradient shrinks with 1/C. Both reach the optimum (the simplex, if d >= C - 1).
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.losses import cosine_matrix, similarity_analysis
from fedray.algorithms.personalised.shared_head import HeadAveraging
from fedray.core import Batch, ClassifierOutput, Downlinks, LocalContext, Server, ServerState
from fedray.evaluation.protocols import Analysis
from fedray.models import drawn_linear


@core.method("alignfed", "AlignFed", "Zhu et al., 2024 (FedTSP supplementary C.4)")
class AlignFed(HeadAveraging):
    """Alignment of features with fixed targets on the sphere, and averaging of heads."""

    down: ClassVar[Any] = {"weight": core.sent("statistics", number=float)}
    """Besides the head, this round's weight of the alignment."""
    keep_targets: ClassVar = core.gift(
        targets=core.sent("prototypes", "nothing: the targets are drawn from the seed", "C d")
    )

    lambda_start: core.LossWeight = 20.0
    """λ_0, weight of the alignment in the first round; 0 averages heads without alignment."""
    lambda_end: core.LossWeight = 2.0
    """λ_T, weight of the alignment after the last round; it changes geometrically from λ_0."""
    temperature: core.Temperature = 1.0
    """Temperature of the cosines in the alignment loss."""
    target_temperature: core.Temperature = 0.5
    """Temperature of the uniformity energy that spreads the targets."""
    target_steps: int = Field(2000, ge=1, le=10**6)
    """Number of SGD steps that spread the targets (repository: 100,000)."""
    softmax: Literal["class", "batch"] = "class"
    """Range of the softmax in the alignment loss: class, over the classes (FedTSP's text), or
    batch, over the batch (FedTSP's repository)."""

    def check(self) -> None:
        if self.lambda_start > 0 and self.lambda_end == 0:
            raise ValueError("lambda_end=0 is not reached geometrically from lambda_start > 0")

    def init_server(self, server: Server) -> ServerState:
        """Return the spread targets and an initial head from the uniform distribution of heads."""
        classes, d = self.setting.num_classes, self.setting.feature_dim
        random = server.streams.torch("alignfed")
        weight, bias = drawn_linear(d, classes, random)
        initial = torch.empty(classes, d).uniform_(-1, 1, generator=random)
        targets = spread_targets(initial, self.target_steps, self.target_temperature)
        return {"targets": targets, "head": {"weight": weight, "bias": bias}}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        done = max(server.round - 1, 0) / self.setting.rounds
        weight = schedule(self.lambda_start, self.lambda_end, done)
        return super().downlink({**state, "weight": weight}, clients, server)

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        return similarity_analysis(state["targets"])

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        loss, weight = super().loss(output, batch, local), float(local.down.weight)
        targets = local.state.memory["targets"]
        logits = cosine_matrix(output.features, targets) / self.temperature
        return loss + weight * alignment_loss(logits, batch.labels, self.softmax)


def uniformity(points: Tensor, temperature: float) -> Tensor:
    """Return the mean over points [C, d] of log sum exp of their cosines over the temperature.

    It is least for spread points, whose lengths do not matter.
    """
    cosines = cosine_matrix(points, points) / temperature
    return torch.logsumexp(cosines, dim=1).mean()


def spread_targets(initial: Tensor, steps: int, temperature: float) -> Tensor:
    """Return unit vectors [C, d]: points spread on the sphere by SGD (lr 0.1) on `uniformity`.

    For d >= C - 1 the optimum is the simplex, whose cosines are -1/(C - 1).
    """
    points = F.normalize(initial, dim=1).requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(uniformity(points, temperature), points)
        with torch.no_grad():
            # The energy's gradient shrinks with 1/C, so the step is 0.1 C.
            points = F.normalize(points - 0.1 * len(points) * gradient, dim=1)
        points.requires_grad_()
    return points.detach()


def schedule(start: float, end: float, done: float) -> float:
    """Return λ_t = start * exp(ln(end/start) * t/T), geometric from start to end; `done` is t/T.

    A start of 0 switches the alignment off.
    """
    if start == 0 or end == 0:
        return 0.0
    return start * math.exp(math.log(end / start) * done)


def alignment_loss(logits: Tensor, labels: Tensor, over: Literal["class", "batch"]) -> Tensor:
    """Return L_align: a cross-entropy of scaled cosines [B, C] of features and targets.

    "class" takes each sample's softmax over the targets; "batch" takes each target's softmax over
    the samples and averages over its own samples, with zero for absent classes.
    """
    if over == "class":
        return F.cross_entropy(logits, labels)
    member = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    log_p = F.log_softmax(logits, dim=0)
    return (-(member * log_p).sum(0) / (member.sum(0) + 1e-6)).mean()
