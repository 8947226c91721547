"""FedDF: means of models per architecture, which the server trains on their ensemble's logits.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
arXiv:2006.07242. Authors' code: epfml/federated-learning-public-code, commit 44dd555,
codes/FedDF-code, `scheme=noise_knowledge_transfer,update_student_scheme=avg_logits`.

    Algorithm 1, 3: means of models, per architecture -> FedDF.server_update
    AVGLOGITS                                         -> FedDF.ensemble, FedDF.student
    cosine annealing of the server's learning rate    -> cosine

Clients train as in FedAvg. The teacher of every architecture is the ensemble of all participants,
with equal weights. Public labels are not read.

Deviations:
    - The number of steps is fixed. The paper and the authors' code stop early, and keep the best
      model, on validation images of the server.
    - The means that students start from are weighted by samples, as in the paper (its text was not
      at hand to verify this); the authors' code weighs clients equally (`weights=uniform`).
    - An architecture without participants starts from its model of the round before.
    - Public images are not augmented; the authors' code augments its data sets.
    - Predictors that are worse than chance are not dropped (the authors' option `drop_worst`).

Buffers: averaged as in FedAvg. Students update running statistics on public images; teachers are in
evaluation mode. Both as in the authors' code.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.losses import kl_divergence
from fedray.base.streams import torch_seeded
from fedray.core import Downlinks, Server, ServerState, Uplinks
from fedray.core.optimizers import Adam


@core.method("feddf", "FedDF", "Lin et al., NeurIPS 2020, arXiv:2006.07242")
class FedDF(FedAvg):
    """A mean model per architecture, trained on the server to predict as the clients' ensemble.

    The server's state holds `models`, the weights and buffers of each architecture.
    """

    version = 2  # the ensemble's mean in double precision
    one_model = True
    requires = core.Requires(public=True)
    dense = False

    server_epochs: int = Field(5, ge=0, le=10_000)
    """Passes of a student over the public images in a round; 0 gives FedAvg inside each
    architecture. Authors' code: at most 10,000 steps, stopped early."""
    server_batch_size: int = Field(128, ge=1, le=1_000_000)
    """Public images of a step. Authors' code: 128."""
    server_lr: core.LearningRate = 0.001
    """Adam's learning rate of the student; it falls to 0 along a cosine. Authors' code: 0.001."""
    clip: float | None = Field(5.0, gt=0, le=1e6)
    """Maximal norm of a student's gradient; null: no clipping. Authors' code: 5."""
    temperature: core.Temperature = 1.0
    """Divisor of logits in AVGLOGITS' softmaxes. Authors' code: 1."""

    def has_global_model(self, state: ServerState) -> bool:
        """Return True if there is one architecture."""
        return len(state["models"]) == 1

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights of every architecture."""
        names = sorted(set(server.architectures))
        return {"models": {name: server.initial(name) for name in names}}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Send every client the model of its architecture."""
        models = {name: self.down(model) for name, model in state["models"].items()}
        return {client: models[server.architectures[client]] for client in clients}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average the uploads of each architecture, and train the mean on the ensemble's logits."""
        groups = dict(enumerate(server.architectures))
        models = self.group_means(state["models"], uplinks, groups, server)
        if self.server_epochs:
            logits = self.ensemble(uplinks, server)
            models = {name: self.student(name, m, logits, server) for name, m in models.items()}
        return {"models": models}

    def ensemble(self, uplinks: Uplinks, server: Server) -> Tensor:
        """Return the mean logits of the uploads on the public images [n, C], AVGLOGITS' teacher."""
        names = {server.architectures[client] for client in uplinks}
        learners = {name: learner_of(server, name) for name in names}
        total = torch.zeros((), dtype=torch.double)
        for client, upload in uplinks.items():
            learner = learners[server.architectures[client]]
            logits = learner.logits(learner.load(upload.model), server.public)
            total = total + logits.cpu().double()
        return (total / len(uplinks)).float().to(server.device)

    def student(
        self, name: str, model: Mapping[str, Tensor], logits: Tensor, server: Server
    ) -> core.Tensors:
        """Return an architecture's model after AVGLOGITS' steps, from teacher logits [n, C]."""
        learner = learner_of(
            server,
            name,
            epochs=self.server_epochs,
            batch_size=self.server_batch_size,
            lr=self.server_lr,
            clip_grad_norm=self.clip,
            optimizer=Adam(),
            shuffle=True,
        )
        seed = server.streams.entropy(f"server layers/{name}", round_=server.round)
        with torch_seeded(seed, server.device):
            local = core.LocalContext(learner, learner.load(model), core.ClientState({}), None)

            def loss(batch: core.Batch) -> Tensor:
                found, teacher = local.model(batch.inputs).logits, logits[batch.positions]
                return kl_divergence(found, teacher, temperature=self.temperature)

            trained = core.fit(local, loss, decay=cosine)
        return {name: tensor.cpu() for name, tensor in trained.tensors.items()}


def learner_of(server: Server, architecture: str, **config: Any) -> core.Client:
    """Return a client that stands for the server, and trains a model on the public images.

    Args:
        server: the server.
        architecture: the model's architecture.
        config: changes of the clients' training configuration.
    """
    skeleton = core.Skeleton(deepcopy(server.empty(architecture)).to(server.device))
    initial, about = partial(server.initial, architecture), (server.round, server.setting)
    client = core.Client(0, *about, server.public, architecture, skeleton, initial, server.device)
    return client.training_on(server.public, "server batches", **config)


def cosine(done: float) -> float:
    """Return the factor (1 + cos(pi s)) / 2 of the learning rate after the share s of the steps."""
    return (1 + math.cos(math.pi * done)) / 2
