"""pFedMe: clients move the global model by where their personal models, held near it, end.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
arXiv:2006.08848.

    Algorithm 1, personal model theta(w) by K steps -> moreau_loss
    Algorithm 1, w - eta lambda (w - theta(w)) -> outer_step
    Algorithm 1, server, (1 - beta) w + beta mean(w_c) -> PFedMe.server_step

The inner steps are taken by the experiment's optimiser (its lr is the inner one), on the same
batch; a batch is one of the paper's R local rounds.

Deviations:
    - The batches are those of E epochs; paper: R = 20 batches, drawn in every round.
    - theta starts every round at w, as in PFLlib.
    - beta is 1 by default; PFLlib's 0 keeps the server's model for ever.
    - The authors' code and PFLlib have a weight decay of 0.001 in the inner step, and weigh clients
      by samples. What they report as personal accuracy is not that of theta: the authors test w_c,
      PFLlib tests the global model, up to 87 points apart. Reproduced by
      `optimizer.weight_decay=0.001 algorithm.weights=samples algorithm.test=global`.

Buffers: running statistics are those of the personal models, averaged as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg, TrainedModel
from fedray.algorithms.losses import proximal_term
from fedray.algorithms.mean import Weights
from fedray.config import Epochs, LearningRate
from fedray.core import (
    Batch,
    Client,
    ClientState,
    LocalContext,
    Server,
    ServerState,
    Total,
    Trained,
    algorithms,
    fit,
)
from fedray.models import Classifier, buffer_names


@algorithms.add
class PFedMe(FedAvg):
    """A global model, and personal ones held near it."""

    name = "pfedme"
    title = "pFedMe"
    paper = "Dinh et al., NeurIPS 2020, arXiv:2006.08848"
    means_equally = FedAvg.means_equally  # the step goes towards the mean

    class HParams(FedAvg.HParams):
        evaluation_only: ClassVar[tuple[str, ...]] = ("test",)

        weights: Weights = "uniform"
        """Weights of the mean: equal (paper), or n_k/n."""
        lambda_: float = Field(15.0, gt=0, le=1e6, alias="lambda")
        """λ, how strongly personal models are held; large keeps them at w. Paper: 15."""
        inner_steps: Epochs = 5
        """K, steps of the personal model on a batch. Paper: 5."""
        eta: LearningRate = 0.005
        """η, step of the local global model, η λ <= 1; the inner one is the experiment's `lr`.
        Paper: 0.005."""
        beta: float = Field(1.0, gt=0, le=2)
        """β, step of the server; 1 takes the mean. Paper: 1 or 2."""
        test: Literal["personal", "global"] = "personal"
        """Tested models: the personal ones, or the global one they start from."""

        @model_validator(mode="after")
        def _does_not_jump(self) -> PFedMe.HParams:
            if self.eta * self.lambda_ > 1:
                raise ValueError(
                    f"eta={self.eta:g} times lambda={self.lambda_:g} is above 1, so w would jump "
                    f"beyond the personal model; set algorithm.eta to {1 / self.lambda_:g} or less"
                )
            return self

    hp: HParams

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Return (1 - beta) w + beta mean(w_c); buffers are the mean's."""
        after = super().server_step(state, total, server)
        if self.hp.beta == 1:
            return after
        w, mean = state["model"], after["model"]
        weights = mean.keys() - buffer_names(server.model)
        moved = {name: torch.lerp(w[name], mean[name], self.hp.beta) for name in weights}
        return {**after, "model": {**mean, **moved}}

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Load the model that is tested: the personal one, once there is one, or the global one."""
        personal = state.model if self.hp.test == "personal" else {}
        return LocalContext(client, client.load({**down.model, **personal}), state, down)

    def train(self, local: LocalContext) -> Trained:
        """Train theta from w, and w after it; the model is theta, the trained tensors are w."""
        model = local.client.load(local.down.model)
        w = {name: theta.detach().clone() for name, theta in model.named_parameters()}

        def loss(batch: Batch) -> Tensor:
            value = self.loss(model(batch.inputs), batch, local)
            return moreau_loss(value, model, w, self.hp.lambda_)

        trained = fit(
            local,
            loss,
            repeat=self.hp.inner_steps,
            after_batch=lambda: outer_step(w, model, self.hp.eta * self.hp.lambda_),
        )
        return replace(trained, tensors={**trained.tensors, **w})

    def finish(self, local: LocalContext, trained: Trained) -> tuple[TrainedModel, ClientState]:
        """Upload w, keep theta."""
        update, _ = super().finish(local, trained)
        return update, ClientState(local.client.save(local.model), local.state.memory)


def moreau_loss(loss: Tensor, model: Classifier, w: Mapping[str, Tensor], lambda_: float) -> Tensor:
    """Return f(theta) + lambda/2 ||theta - w||²; its minimum is the Moreau envelope at w."""
    return loss + proximal_term(model, w, lambda_)


@torch.no_grad()
def outer_step(w: Mapping[str, Tensor], model: Classifier, step: float) -> None:
    """Set w to w - eta lambda (w - theta), in place.

    Args:
        w: by name.
        model: theta.
        step: eta lambda.
    """
    for name, theta in model.named_parameters():
        w[name].sub_(step * (w[name] - theta))
