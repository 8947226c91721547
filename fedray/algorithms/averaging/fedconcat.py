"""FedConcat: clusters of clients train encoders, whose concatenated features one classifier reads.

Diao, Li and He, "Exploiting Label Skews in Federated Learning with Model Concatenation", AAAI 2024,
arXiv:2312.06290.

    clustering by label distribution -> cluster
    averaging inside clusters        -> FedConcat.server_update
    concatenation                    -> concatenate_heads
    training of the classifier       -> FedConcat.train_head

The method has three stages. First, clients send their label distributions, and K-means divides
the clients into G clusters. Second, every cluster runs `cluster_rounds` rounds of FedAvg. Third,
the G encoders are frozen and sent once to all clients, and the remaining rounds train one
classifier on their concatenated features. Each client trains the classifier on a few batches, and
the server takes the unweighted mean. Clients keep the encoders. When the clients' images change
(`data.evolution`), the clusters stay.

A client that has not received the encoders predicts with its cluster's model. Before the third
stage there is therefore no global accuracy, and local accuracies are those of the clusters' models.

Deviations:
    - The classifier starts from the concatenated heads of the clusters and the sum of their biases.
      The official code does this for CIFAR-100 and Tiny-ImageNet, and starts from random weights
      for other data sets.
    - Every step of K-means assigns clients optimally under the bound on the largest cluster, and
      leaves no cluster empty; the official code assigns greedily.
    - A client whose label distribution did not arrive counts as a client with equal class shares.

Buffers: as in FedAvg, inside each cluster; frozen encoders run in evaluation mode.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.algorithms.mean import client_weights, weighted_mean
from fedray.base.errors import UserError
from fedray.core import Client, ClientState, Downlinks, Server, ServerState, StepResult, Uplinks
from fedray.models import BackboneClassifier, ImageFeatures, Inputs, head_tensors, tensor_names

WEIGHT, BIAS = "head.weight", "head.bias"
SHARES = "which classes the client holds, and in what proportions"
OF_CLUSTERS = "the mean encoder of each cluster; for a cluster of one client, its own encoder"
RESTARTS = 10
"""The number of random starts of K-means; the best result is used."""
STEPS = 100
"""The maximal number of steps of one start; a start ends when no point changes its cluster."""


@core.method("fedconcat", "FedConcat", "Diao et al., AAAI 2024, arXiv:2312.06290")
class FedConcat(FedAvg):
    """FedAvg inside clusters of clients, then one classifier on all clusters' features.

    The server's state holds `clusters`, each cluster's model (`{"0": {...}, ...}`), `assignment`,
    the cluster of each client [N], and from the third stage on `head`, the classifier.
    `clusters=1` with `cluster_rounds=rounds` is FedAvg.
    """

    version = 3  # clients keep the encoders' buffers beside their weights
    one_model = True
    dense = False
    keep_encoders: ClassVar = core.gift(encoders=core.sent("weights", OF_CLUSTERS))
    """The clusters' encoders: weights and buffers, by cluster and name."""

    clusters: int = Field(2, ge=1, le=100_000)
    """G, number of clusters; 1 trains a classifier after FedAvg. FedGLCL's comparison does not
    state its value; try 2 to 5."""
    largest: float | None = Field(None, ge=1, le=100_000)
    """Largest size of a cluster, as a multiple of N/G clients; null: no bound. Official code:
    1.2 for CIFAR-100 and Tiny-ImageNet."""
    cluster_rounds: int | None = Field(None, ge=1, le=100_000)
    """Number of first rounds that train inside the clusters; null: half of `rounds`. The value
    of `rounds` trains no classifier. FedGLCL's comparison: 50 of 1050."""
    head_batches: int = Field(3, ge=1, le=10_000)
    """Batches that each client trains on in a round of the classifier. Paper: 3."""

    @property
    def rounds_in_clusters(self) -> int:
        """Return the number of rounds inside the clusters."""
        return self.cluster_rounds or ceil(self.setting.rounds / 2)

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights for every cluster."""
        clients, rounds = self.setting.clients, self.setting.rounds
        if self.clusters > clients:
            raise UserError(f"algorithm.clusters={self.clusters} exceeds data.clients={clients}")
        if (first := self.rounds_in_clusters) > rounds:
            raise UserError(f"algorithm.cluster_rounds={first} exceeds rounds={rounds}")
        model = super().init_server(server)["model"]
        return {"clusters": {str(g): model for g in range(self.clusters)}}

    def prepare(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Collect the clients' label distributions and cluster them."""
        clients, count = self.setting.clients, self.clusters
        if len(exchange.everyone) < clients:
            raise UserError("fedconcat clusters clients before round 1; set join.clients=0")
        answers = exchange.call("label_distribution", dict.fromkeys(exchange.everyone))
        classes = self.setting.num_classes
        points = np.full((clients, classes), 1 / classes)  # uniform for clients without a reply
        for client, answer in answers.items():
            points[client] = answer.shares.numpy()
        bound = float("inf") if self.largest is None else int(self.largest * clients / count)
        largest = int(min(clients, max(bound, ceil(clients / count))))
        random = exchange.server.streams.numpy("fedconcat")
        return {"assignment": torch.from_numpy(cluster(points, count, largest, random))}

    def round(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Run a round inside the clusters, or, in the third stage, a round of the classifier."""
        if exchange.server.round <= self.rounds_in_clusters:
            return super().round(state, exchange)
        if "head" not in state:
            weight, bias = concatenate_heads(state["clusters"].values())
            state = {**state, "head": {WEIGHT: weight, BIAS: bias}}
        has_encoders = core.held_versions(state, "keep_encoders", self.setting) == 0
        ready = [client for client in exchange.participants if has_encoders[client]]
        uplinks = exchange.call("train_head", self.downlink(state, ready, exchange.server))
        if not uplinks:
            return state
        heads = {client: upload.model for client, upload in uplinks.items()}
        return {"head": weighted_mean(client_weights(uplinks, "uniform"), heads)}

    def give(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Give the encoders, the clusters' models without heads, to all in the third stage."""
        if exchange.server.round <= self.rounds_in_clusters:
            return state
        model = exchange.server.model
        names = tensor_names(model) - head_tensors(model)
        encoders = {g: select(tensors, names) for g, tensors in state["clusters"].items()}
        down = dict.fromkeys(exchange.everyone, self.keep_encoders.down(encoders))
        return exchange.give(state, "keep_encoders", down)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Send the classifier to clients with the encoders, and to others their cluster's model."""
        models = [self.down(model) for model in state["clusters"].values()]
        down = {c: models[int(state["assignment"][c])] for c in clients}
        if "head" in state:
            head = self.train_head.down(state["head"])
            has_encoders = core.held_versions(state, "keep_encoders", self.setting) == 0
            down |= {client: head for client in clients if has_encoders[client]}
        return down

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average the uploads inside each cluster; a cluster without uploads keeps its model."""
        groups = {client: str(g) for client, g in enumerate(state["assignment"].tolist())}
        return {"clusters": self.group_means(state["clusters"], uplinks, groups, server)}

    def has_global_model(self, state: ServerState) -> bool:
        """Return True in the third stage or with a single cluster."""
        return "head" in state or self.clusters == 1

    @core.step(up={"shares": core.sent("statistics", SHARES, "C", dtype=torch.float64)})
    def label_distribution(self, client: Client, state: ClientState, down: None) -> StepResult:
        """Upload the shares of the classes among the client's training images."""
        counts = client.class_counts.cpu().double()
        return {"shares": counts / counts.sum()}, state

    @core.step(down={"model": core.sent("weights", "the mean of the participants' classifiers")})
    def train_head(self, client: Client, state: ClientState, down: Any) -> StepResult:
        """Train the classifier on the features of `head_batches` batches."""
        local = self.begin(client, state, down)
        count = self.head_batches * self.setting.training.batch_size
        random = client.random("head_batches")
        drawn = torch.randperm(len(client.train), generator=random)[:count].numpy()
        part = replace(local.client, train=local.client.train.part(drawn))
        local = replace(local, client=part.with_schedule(epochs=1))
        return self.finish(local, self.train(local))

    def begin(self, client: Client, state: ClientState, down: Any) -> core.LocalContext:
        """Load the classifier behind the encoders, or the cluster's model."""
        if down.fields.place == self.train_head.down.place:
            model = ConcatenatedClassifier(client, [*state.memory["encoders"].values()])
            setting = replace(client.setting, feature_dim=model.head.in_features)
            skeleton = core.Skeleton(model.to(client.device))
            client = replace(client, setting=setting, skeleton=skeleton)
        return super().begin(client, state, down)


class ConcatenatedClassifier(BackboneClassifier):
    """A head on the features of the clusters' frozen encoders; only the head has parameters.

    The client's skeleton has the architecture of the encoders, given by weights and buffers.
    """

    head: nn.Linear

    def __init__(self, client: Client, encoders: Sequence[Mapping[str, Tensor]]) -> None:
        width = len(encoders) * client.setting.feature_dim
        super().__init__(nn.Identity(), width, width, client.setting.num_classes)
        skeletons = [core.Skeleton(copied_model(client.skeleton.model)) for _ in encoders]
        for skeleton, encoder in zip(skeletons, encoders, strict=True):
            skeleton.load({**skeleton.tensors, **encoder})
        self._encoders = tuple(skeleton.model.eval() for skeleton in skeletons)  # not submodules

    def forward(self, x: Inputs) -> core.ClassifierOutput:
        """Compute the logits of images [B, C]."""
        with torch.no_grad():
            features = [encoder(x).features.float() for encoder in self._encoders]
        return super().forward(ImageFeatures(torch.cat(features, dim=1)))


def copied_model(model: core.Classifier) -> core.Classifier:
    """Return a copy of a model on its device; `deepcopy` alone cannot copy views on all devices."""
    copies = {id(p): nn.Parameter(p.detach().clone()) for p in model.parameters()}
    return deepcopy(model, {**copies, **{id(b): b.clone() for b in model.buffers()}})


def concatenate_heads(models: Iterable[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return weight [C, G d] and bias [C] of a head whose logits are the sum of G heads' logits.

    The models have heads of weight [C, d] and bias [C].
    """
    weights, biases = zip(*((model[WEIGHT], model[BIAS]) for model in models), strict=True)
    return torch.cat(weights, dim=1), torch.stack(biases).sum(dim=0)


def cluster(
    points: np.ndarray, count: int, largest: int, random: np.random.Generator
) -> np.ndarray:
    """Return the cluster of each point [N] by K-means: the best result of several random starts.

    The `count` clusters of points [N, C], G <= N, are numbered by their first points. None is empty
    or has more than `largest` points, at least N/G. `random` draws the initial centres.
    """
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(RESTARTS):
        centres = points[random.choice(len(points), count, replace=False)]
        members = np.full(len(points), -1)
        for _ in range(STEPS):
            costs = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
            before, members = members, assign(costs, largest)
            total = float(costs[np.arange(len(points)), members].sum())
            if np.array_equal(members, before):
                break
            centres = np.stack([points[members == g].mean(axis=0) for g in range(count)])
        if total < least - 1e-12:
            best, least = members, total
    order = {g: number for number, g in enumerate(dict.fromkeys(best.tolist()))}
    return np.array([order[g] for g in best.tolist()], dtype=np.int64)


def assign(costs: np.ndarray, largest: int) -> np.ndarray:
    """Return the cluster of each point [N] at the least total cost, given costs [N, G] >= 0.

    A cluster has 1 to `largest` points, at least N/G.
    """
    near: np.ndarray = costs.argmin(axis=1)
    sizes = np.bincount(near, minlength=costs.shape[1])
    if sizes.min() > 0 and sizes.max() <= largest:
        return near
    slots = np.repeat(costs, largest, axis=1)
    slots[:, ::largest] -= costs.sum() + 1  # the first slot of every cluster is filled first
    from scipy.optimize import linear_sum_assignment  # takes a second to import

    _, columns = linear_sum_assignment(slots)
    assignment: np.ndarray = columns // largest
    return assignment
