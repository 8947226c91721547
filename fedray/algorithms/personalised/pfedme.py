"""pFedMe: clients train personal models near the global one, and move the global one towards them.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
arXiv:2006.08848.

    Algorithm 1, personal model theta(w) by K steps -> proximal_term  (losses.py), PFedMe.train
    Algorithm 1, w - eta lambda (w - theta(w)) -> outer_step
    Algorithm 1, server, (1 - beta) w + beta mean(w_c) -> PFedMe.server_step

The experiment's optimiser takes K inner steps on every batch, with the experiment's `lr`. A batch
is one of the paper's R local rounds.

Deviations:
    - A round consists of E epochs of batches; in the paper, of R = 20 randomly drawn batches.
    - theta starts every round at w, as in PFLlib.
    - beta is 1 by default; PFLlib's default of 0 never changes the server's model.
    - The authors' code and PFLlib use a weight decay of 0.001 in the inner step, and weight clients
      by samples. The personal accuracy that they report is not the accuracy of theta: the authors
      test w_c, and PFLlib tests the global model, with differences of up to 87 points. The settings
      `optimizer.weight_decay=0.001 algorithm.weights=samples algorithm.test=global` reproduce this.

Buffers: the running statistics of the personal models are averaged as in FedAvg.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import OwnModel
from fedray.algorithms.losses import proximal_term
from fedray.algorithms.mean import Weights
from fedray.core import LocalContext, Server, ServerState, Total
from fedray.models import buffer_names


@core.method("pfedme", "pFedMe", "Dinh et al., NeurIPS 2020, arXiv:2006.08848")
class PFedMe(OwnModel):
    """A global model, and personal models that a proximal term holds near it."""

    evaluation_only: ClassVar[tuple[str, ...]] = ("test",)

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (paper), or samples, n_k/n."""
    lambda_: float = Field(15.0, gt=0, le=1e6)
    """λ, weight of the proximal term; large values keep personal models at w. Paper: 15."""
    inner_steps: core.Epochs = 5
    """K, number of steps of the personal model on each batch. Paper: 5."""
    eta: core.LearningRate = 0.005
    """η, learning rate of w, the client's copy of the global model, with η λ <= 1; personal
    models use the experiment's `lr`. Paper: 0.005."""
    beta: float = Field(1.0, gt=0, le=2)
    """β, step size of the server; 1 sets the model to the clients' mean. Paper: 1 or 2."""
    test: Literal["personal", "global"] = "personal"
    """The models that are tested: personal, or global, from which personal models start."""

    def check(self) -> None:
        if self.eta * self.lambda_ > 1:
            raise ValueError(f"eta={self.eta:g} exceeds 1 / lambda={1 / self.lambda_:g}")

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Return (1 - beta) w + beta mean(w_c), with the mean of the buffers."""
        w, mean = state["model"], super().server_step(state, total, server)["model"]
        if self.beta == 1:
            return {"model": mean}
        weights = mean.keys() - buffer_names(server.model)
        moved = {name: torch.lerp(w[name], mean[name], self.beta) for name in weights}
        return {"model": {**mean, **moved}}

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> LocalContext:
        """Load the model for tests: the personal model if it exists, or the global model."""
        tested = state if self.test == "personal" else core.ClientState({}, state.memory)
        return super().begin(client, tested, down)

    def train(self, local: LocalContext) -> core.Trained:
        """Train theta from w, and move w after theta; keep theta in the model and return w.

        The minimum of the loss f(theta) + lambda/2 ||theta - w||² is the Moreau envelope of f at w.
        """
        model = local.client.load(local.down.model)
        w = {name: theta.detach().clone() for name, theta in model.named_parameters()}
        batch_loss = self.batch_loss(local)

        def loss(batch: core.Batch) -> Tensor:
            return batch_loss(batch) + proximal_term(model, w, self.lambda_)

        move = partial(outer_step, w, model, self.eta * self.lambda_)
        trained = core.fit(local, loss, repeat=self.inner_steps, after_batch=move)
        return replace(trained, tensors={**trained.tensors, **w})


@torch.no_grad()
def outer_step(w: Mapping[str, Tensor], model: core.Classifier, step: float) -> None:
    """Set w, by parameter name, to w - eta lambda (w - theta) in place; `step` is eta lambda."""
    for name, theta in model.named_parameters():
        w[name].sub_(step * (w[name] - theta))
