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

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.algorithms.mean import client_weights, weighted_mean
from fedray.errors import UserError
from fedray.models import (
    BackboneClassifier,
    Classifier,
    ClassifierOutput,
    ImageFeatures,
    Inputs,
    buffer_names,
    head_tensors,
    tensor_names,
)

WEIGHT, BIAS = "head.weight", "head.bias"
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

    version = 2  # encodes the images of each batch
    one_model = True
    dense = False
    keep_encoders = core.gift(
        weights=core.sent(
            "weights",
            "the mean encoder of each cluster; for a cluster of one client, its own encoder",
        ),
        buffers=core.sent("statistics", counters=True),
    )
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
        if self.cluster_rounds is None:
            return ceil(self.setting.rounds / 2)
        return self.cluster_rounds

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the initial weights for every cluster.

        Raises:
            UserError: if there are more clusters than clients, or `cluster_rounds` exceeds
                `rounds`.
        """
        if self.clusters > self.setting.clients:
            raise UserError(
                f"algorithm.clusters={self.clusters} is more than the number of clients, "
                f"{self.setting.clients}; lower algorithm.clusters or raise data.clients"
            )
        if self.rounds_in_clusters > self.setting.rounds:
            raise UserError(
                f"algorithm.cluster_rounds={self.rounds_in_clusters} exceeds "
                f"rounds={self.setting.rounds}; lower algorithm.cluster_rounds or raise rounds, "
                "so that rounds remain to train the classifier"
            )
        model = super().init_server(server)["model"]
        return {"clusters": {str(g): model for g in range(self.clusters)}}

    def prepare(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Collect the clients' label distributions and cluster them."""
        if len(exchange.everyone) < self.setting.clients:
            raise UserError(
                "fedconcat divides the clients into clusters before the first round, so no client "
                "can join later; set join.clients=0"
            )
        answers = exchange.call("label_distribution", dict.fromkeys(exchange.everyone))
        classes, clients = self.setting.num_classes, len(exchange.everyone)
        points = np.full((clients, classes), 1 / classes)  # uniform for clients without a reply
        for client, answer in answers.items():
            points[client] = answer.shares.numpy()
        count, largest = self.clusters, clients
        if self.largest is not None:
            largest = max(int(self.largest * clients / count), ceil(clients / count))
        random = exchange.server.streams.numpy("fedconcat")
        assignment = torch.from_numpy(cluster(points, count, largest, random))
        return {"assignment": assignment}

    def round(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Run a round inside the clusters, or, in the third stage, a round of the classifier."""
        if exchange.server.round <= self.rounds_in_clusters:
            return super().round(state, exchange)
        if "head" not in state:
            weight, bias = concatenate_heads(list(state["clusters"].values()))
            state = {**state, "head": {WEIGHT: weight, BIAS: bias}}
        has_encoders = self._has_encoders(state)
        ready = [client for client in exchange.participants if has_encoders[client]]
        uplinks = exchange.call("train_head", self.downlink(state, ready, exchange.server))
        if not uplinks:
            return state
        heads = {client: upload.model for client, upload in uplinks.items()}
        return {"head": weighted_mean(client_weights(uplinks, "uniform"), heads)}

    def give(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Give the encoders to all clients in the third stage."""
        server = exchange.server
        if server.round <= self.rounds_in_clusters or self._has_encoders(state).all():
            return state
        down = dict.fromkeys(exchange.everyone, self._encoders(state, server))
        return exchange.give(state, "keep_encoders", down)

    def _encoders(self, state: core.ServerState, server: core.Server) -> core.Payload:
        """Return the clusters' models without heads."""
        buffers = buffer_names(server.model)
        weights = tensor_names(server.model) - buffers - head_tensors(server.model)
        parts = [
            {g: select(model, names) for g, model in state["clusters"].items()}
            for names in (weights, buffers)
        ]
        encoders: core.Payload = self.keep_encoders.down(*parts)
        return encoders

    def _has_encoders(self, state: core.ServerState) -> Tensor:
        """Return the mask of clients with the encoders [N]."""
        return core.held_versions(state, "keep_encoders", self.setting) == 0

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        """Send the classifier to clients with the encoders, and to others their cluster's model."""
        models = [self.down(model) for model in state["clusters"].values()]
        down = {c: models[int(state["assignment"][c])] for c in clients}
        if "head" in state:
            head = self.train_head.down(state["head"])
            has_encoders = self._has_encoders(state)
            down |= {client: head for client in clients if has_encoders[client]}
        return down

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Average the uploads inside each cluster; a cluster without uploads keeps its model."""

        def group_of(client: int) -> str:
            return str(int(state["assignment"][client]))

        return {"clusters": self.mean_of_groups(state["clusters"], uplinks, group_of, server)}

    def has_global_model(self, state: core.ServerState) -> bool:
        """Return True in the third stage or with a single cluster."""
        return "head" in state or self.clusters == 1

    @core.step(
        up={
            "shares": core.sent(
                "statistics",
                "which classes the client holds, and in what proportions",
                "C",
                dtype=torch.float64,
            )
        }
    )
    def label_distribution(
        self, client: core.Client, state: core.ClientState, down: None
    ) -> tuple[core.Tensors, core.ClientState]:
        """Upload the shares of the classes among the client's training images."""
        counts = client.class_counts.cpu().double()
        return {"shares": counts / counts.sum()}, state

    @core.step(down={"model": core.sent("weights", "the mean of the participants' classifiers")})
    def train_head(
        self, client: core.Client, state: core.ClientState, down: Any
    ) -> tuple[Any, core.ClientState]:
        """Train the classifier on the features of `head_batches` batches."""
        local = self.begin(client, state, down)
        count = self.head_batches * self.setting.training.batch_size
        random = client.random("head_batches")
        drawn = torch.randperm(len(client.train), generator=random)[:count].numpy()
        part = replace(local.client, train=local.client.train.part(drawn))
        local = replace(local, client=part.with_schedule(epochs=1))
        return self.finish(local, self.train(local))

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the classifier behind the encoders, or the cluster's model."""
        if down.fields.place == self.train_head.down.place:
            weights, buffers = (state.memory[name] for name in ("weights", "buffers"))
            encoders = [{**weights[g], **buffers[g]} for g in weights]
            model = ConcatenatedClassifier(client, encoders).to(client.device)
            width = len(encoders) * self.setting.feature_dim
            setting = replace(client.setting, feature_dim=width)
            client = replace(client, setting=setting, skeleton=core.Skeleton(model))
        return super().begin(client, state, down)


class ConcatenatedClassifier(BackboneClassifier):
    """A head on the features of the clusters' frozen encoders; only the head has parameters.

    Args:
        client: the client; its skeleton has the architecture of the encoders.
        encoders: weights and buffers of each cluster's encoder.
    """

    def __init__(self, client: core.Client, encoders: Sequence[Mapping[str, Tensor]]) -> None:
        width = len(encoders) * client.setting.feature_dim
        super().__init__(nn.Identity(), width, width, client.setting.num_classes)
        self._client, self._encoders = client, encoders

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Compute the logits of images [B, C]."""
        with torch.no_grad():
            models = load_encoders(self._client, self._encoders)
            features = torch.cat([model(x).features.float() for model in models], dim=1)
        return super().forward(ImageFeatures(features))


def load_encoders(
    client: core.Client, encoders: Sequence[Mapping[str, Tensor]]
) -> Iterator[Classifier]:
    """Load each cluster's encoder into the client's skeleton in turn and yield it for evaluation.

    The skeleton's head is unchanged, because nothing reads its logits.
    """
    head = {name: client.skeleton.tensors[name] for name in (WEIGHT, BIAS)}
    for encoder in encoders:
        yield client.load({**encoder, **head}).eval()


def concatenate_heads(models: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate the clusters' heads into one head, whose logits are the sum of their logits.

    Args:
        models: G models with heads of weight [C, d] and bias [C].

    Returns:
        Weight [C, G d] and bias [C].
    """
    weight = torch.cat([model[WEIGHT] for model in models], dim=1)
    return weight, torch.stack([model[BIAS] for model in models]).sum(dim=0)


def cluster(
    points: np.ndarray, count: int, largest: int, random: np.random.Generator
) -> np.ndarray:
    """Cluster points by K-means; return the best result of several random starts.

    Args:
        points: points [N, C].
        count: number of clusters, G <= N; no cluster is empty.
        largest: maximal number of points in a cluster, at least N/G.
        random: the generator that draws the initial centres.

    Returns:
        The cluster of each point [N], int64, numbered by their first points.
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
    """Assign points to clusters at the least total cost, with 1 to `largest` points per cluster.

    Args:
        costs: cost of every point in every cluster [N, G], not negative.
        largest: maximal number of points in a cluster, at least N/G.

    Returns:
        The cluster of each point [N].
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
