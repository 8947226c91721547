"""FedConcat: clusters of similar clients train encoders; one classifier takes their concatenation.

Diao, Li and He, "Exploiting Label Skews in Federated Learning with Model Concatenation", AAAI 2024,
arXiv:2312.06290.

    clustering by label distribution -> cluster
    averaging inside clusters        -> FedConcat.server_update
    concatenation                    -> concatenated_head
    training of the classifier       -> FedConcat.train_head

Three stages: clients send their label distributions, and K-means makes G clusters of them; then
`cluster_rounds` rounds of FedAvg inside each cluster; then the G encoders are frozen, sent once to
all clients, and the remaining rounds train one classifier on their concatenated features, a few
batches each, averaged without weights. Clients keep the encoders, and the features of their
training images, which are computed once because the encoders are frozen. Where the clients' images
change (`data.evolution`) the encoders are sent again; the clusters stay.

Until the encoders have reached a client it predicts with its cluster's model. So before the third
stage there is no global accuracy, and local accuracies are those of the clusters' models.

Deviations:
    - By default the classifier's initial weights are the clusters' heads, concatenated, with the
      sum of their biases; the official code has that for CIFAR-100 and Tiny-ImageNet, and random
      weights for the others.
    - The largest cluster's bound is kept by an optimal assignment in each step of K-means, not by a
      greedy one, and no cluster is empty.
    - The classifier is trained on images without augmentation; `data.augment` does not apply.
    - A client whose label distribution has not arrived counts as one with equal shares.

Buffers: as in FedAvg, inside each cluster; frozen encoders are in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.averaging.fedavg import (
    FedAvg,
    GlobalModel,
    TrainedModel,
    select,
)
from fedray.algorithms.mean import client_weights, weighted_mean
from fedray.core import (
    Client,
    ClientState,
    Downlinks,
    Exchange,
    LocalContext,
    Payload,
    Samples,
    Server,
    ServerState,
    Skeleton,
    Tensors,
    Uplinks,
    algorithms,
    held_versions,
    payload_field,
    total_of,
)
from fedray.data.augment import NO_AUGMENTATION
from fedray.errors import UserError
from fedray.models import (
    BackboneClassifier,
    Classifier,
    ClassifierOutput,
    ImageFeatures,
    Inputs,
    Pixels,
    buffer_names,
    head_tensors,
    initialise,
    tensor_names,
)

WEIGHT, BIAS = "head.weight", "head.bias"
RESTARTS = 10
"""Starts of K-means, of which the best counts."""
STEPS = 100
"""The most steps of one start; it ends when no point changes its cluster."""


@dataclass(frozen=True)
class LabelDistribution(Payload):
    """The share of each class among a client's training images [C]."""

    shares: Tensor = payload_field(
        "statistics",
        "C",
        dtype=torch.float64,
        reveals="which classes the client holds, and in what proportions",
    )


@dataclass(frozen=True)
class Encoders(Payload):
    """The clusters' encoders: weights and buffers by cluster and name."""

    weights: Mapping[str, Mapping[str, Tensor]] = payload_field(
        "weights",
        reveals="the mean encoder of each cluster; of a cluster of one client, that client's own",
    )
    buffers: Mapping[str, Mapping[str, Tensor]] = payload_field("statistics")


@dataclass(frozen=True)
class ConcatenatedHead(GlobalModel):
    """The classifier on concatenated features: weight [C, G d] and bias [C]."""

    weights: Mapping[str, Tensor] = payload_field(
        "weights", reveals="the mean of the participants' classifiers"
    )


@algorithms.add
class FedConcat(FedAvg):
    """FedAvg in clusters, then one classifier on the features of all clusters' encoders.

    The server's state: each cluster's model, `{"clusters": {"0": {...}, ...}}`; `assignment`, the
    cluster of each client [N]; from the third stage on `head`.
    """

    name = "fedconcat"
    title = "FedConcat"
    paper = "Diao et al., AAAI 2024, arXiv:2312.06290"
    travels = "label distributions once; models in clusters; encoders once; classifiers"
    one_model = True
    stacks = True
    uploads = (LabelDistribution, TrainedModel)
    downloads = (GlobalModel, Encoders, ConcatenatedHead)

    class HParams(FedAvg.HParams):
        """FedConcat's hyper-parameters; one cluster in every round is FedAvg."""

        clusters: int = Field(2, ge=1, le=100_000)
        """G, clusters; 1 is FedAvg, then a classifier. Not in FedGLCL's comparison; try 2 to 5."""
        largest: float | None = Field(None, ge=1, le=100_000)
        """The largest cluster, in N/G clients; null: no bound. Official code: 1.2 for CIFAR-100 and
        Tiny-ImageNet."""
        cluster_rounds: int | None = Field(None, ge=1, le=100_000)
        """Rounds inside the clusters, the first ones; null: half of `rounds`. As many as `rounds`
        leave the classifier out. FedGLCL's comparison: 50 of 1050."""
        head_batches: int = Field(3, ge=1, le=10_000)
        """Batches of each client in a round of the classifier. Paper: 3."""
        head_init: Literal["clusters", "random"] = "clusters"
        """The classifier's initial weights: the clusters' heads, or random."""

    hp: HParams

    @property
    def cluster_rounds(self) -> int:
        """Return the number of rounds inside the clusters."""
        if self.hp.cluster_rounds is None:
            return ceil(self.setting.rounds / 2)
        return self.hp.cluster_rounds

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights for every cluster.

        Raises:
            UserError: for more clusters than clients, or more of their rounds than there are.
        """
        if self.hp.clusters > self.setting.clients:
            raise UserError(
                f"algorithm.clusters={self.hp.clusters} for {self.setting.clients} clients; lower "
                "it to at most data.clients"
            )
        if self.cluster_rounds > self.setting.rounds:
            raise UserError(
                f"algorithm.cluster_rounds={self.cluster_rounds} of rounds={self.setting.rounds}; "
                "lower it, or raise rounds, so that the classifier is trained after them"
            )
        model = super().init_server(server)["model"]
        return {"clusters": {str(g): model for g in range(self.hp.clusters)}}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Collect the clients' label distributions and cluster them."""
        if len(exchange.everyone) < self.setting.clients:
            raise UserError(
                "fedconcat divides clients into clusters before the first round, so that nobody "
                "can come later; set join.clients=0"
            )
        answers = exchange.call("label_distribution", dict.fromkeys(exchange.everyone))
        classes, clients = self.setting.num_classes, len(exchange.everyone)
        points = np.full((clients, classes), 1 / classes)  # uniform for those that did not reply
        for client, answer in answers.items():
            points[client] = answer.shares.numpy()
        count, largest = self.hp.clusters, clients
        if self.hp.largest is not None:
            largest = max(int(self.hp.largest * clients / count), ceil(clients / count))
        random = exchange.server.streams.numpy("fedconcat")
        assignment = torch.from_numpy(cluster(points, count, largest, random))
        return {**state, "assignment": assignment}

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Run a round inside the clusters, or of the classifier on their frozen encoders."""
        if exchange.server.round <= self.cluster_rounds:
            return super().round(state, exchange)
        if "head" not in state:
            state = {**state, "head": self._initial_head(state, exchange.server)}
        has_encoders = self._has_encoders(state, exchange.server)
        ready = [client for client in exchange.participants if has_encoders[client]]
        uplinks = exchange.call("train_head", self.downlink(state, ready, exchange.server))
        if not uplinks:
            return state
        heads = {client: upload.model for client, upload in uplinks.items()}
        return {**state, "head": weighted_mean(client_weights(uplinks, "uniform"), heads)}

    def give(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Give the encoders to everyone in the third stage, and again when their images change."""
        server = exchange.server
        if server.round <= self.cluster_rounds or self._has_encoders(state, server).all():
            return state
        down = dict.fromkeys(exchange.everyone, _encoders(state, server))
        phase = self._phase(server)
        return exchange.give(state, "encoders", down, version=phase, step="receive_encoders")

    def _phase(self, server: Server) -> int:
        """Return the first round of the data's phase to which the round belongs."""
        return max((first for first in self.setting.phases if first <= server.round), default=0)

    def _has_encoders(self, state: ServerState, server: Server) -> Tensor:
        """Return which clients hold the encoders, and features of their present images [N]."""
        return held_versions(state, "encoders", self.setting) == self._phase(server)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Send the classifier to clients with the encoders, to others their cluster's model."""
        models = [GlobalModel.of(server.model, model) for model in state["clusters"].values()]
        down = {c: models[int(state["assignment"][c])] for c in clients}
        if "head" in state:
            head = ConcatenatedHead(state["head"], {})
            has_encoders = self._has_encoders(state, server)
            down |= {client: head for client in clients if has_encoders[client]}
        return down

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average each cluster's participants; a cluster without any keeps its model."""
        clusters = dict(state["clusters"])
        for g in range(self.hp.clusters):
            members = {c: upload for c, upload in uplinks.items() if state["assignment"][c] == g}
            if members:
                model, total = {"model": clusters[str(g)]}, total_of(self.summand, members)
                clusters[str(g)] = self.server_step(model, total, server)["model"]
        return {**state, "clusters": clusters}

    def has_global_model(self, state: ServerState) -> bool:
        """Return True in the third stage, or with one cluster."""
        return "head" in state or self.hp.clusters == 1

    def _initial_head(self, state: ServerState, server: Server) -> Tensors:
        weight, bias = concatenated_head(list(state["clusters"].values()))
        if self.hp.head_init == "random":
            head = nn.Linear(weight.shape[1], weight.shape[0])
            initialise(head, server.streams.torch("fedconcat_head"))
            weight, bias = head.weight.detach(), head.bias.detach()
        return {WEIGHT: weight, BIAS: bias}

    def label_distribution(
        self, client: Client, state: ClientState, down: None
    ) -> tuple[LabelDistribution, ClientState]:
        """Upload the shares of the classes among the client's training images."""
        counts = client.class_counts().double()
        return LabelDistribution(counts / counts.sum()), state

    def receive_encoders(
        self, client: Client, state: ClientState, down: Encoders
    ) -> tuple[None, ClientState]:
        """Keep the encoders, and compute the features of the client's training images, once."""
        encoders = {g: {**weights, **down.buffers[g]} for g, weights in down.weights.items()}
        parts = [client.features(model, client.train) for model in loaded(client, encoders)]
        features = torch.cat(parts, dim=1)
        memory = {**state.memory, "encoders": encoders, "features": features}
        return None, ClientState(state.model, memory)

    def train_head(
        self, client: Client, state: ClientState, down: ConcatenatedHead
    ) -> tuple[TrainedModel, ClientState]:
        """Train the classifier on a few batches of features."""
        local = self.begin(client, state, down)
        few = self.hp.head_batches * self.setting.training.batch_size
        random = self.setting.streams.torch("head_batches", round_=client.round, client=client.id)
        drawn = torch.randperm(len(client.train), generator=random)[:few].numpy()
        train = local.client.train
        part = replace(local.client, train=replace(train, index=train.index[drawn]))
        local = replace(local, client=part.with_schedule(epochs=1))
        return self.finish(local, self.train(local))

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Start the classifier on the encoders' features, or the cluster's model on images."""
        if isinstance(down, ConcatenatedHead):
            client = with_encoders(client, state.memory["encoders"], state.memory["features"])
        return super().begin(client, state, down)


class ConcatenatedClassifier(BackboneClassifier):
    """A head on the features of the clusters' frozen encoders; only the head has parameters.

    Args:
        client: the client, whose skeleton is the encoders' architecture.
        encoders: weights and buffers of each cluster's encoder.
        width: G d, width of the concatenated features.
    """

    def __init__(
        self, client: Client, encoders: Mapping[str, Mapping[str, Tensor]], width: int
    ) -> None:
        super().__init__(nn.Identity(), width, width, client.setting.num_classes)
        self._client, self._encoders = client, encoders

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Compute logits [B, C] of images, or of features [B, G d] that were computed before."""
        if isinstance(x, Pixels):
            with torch.no_grad():
                models = loaded(self._client, self._encoders)
                x = ImageFeatures(torch.cat([m(x).features.float() for m in models], dim=1))
        return super().forward(x)


def loaded(client: Client, encoders: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Classifier]:
    """Yield each cluster's encoder, in evaluation mode, in the client's one skeleton.

    The skeleton's head is unchanged: nothing reads its logits.
    """
    head = {name: client.skeleton.tensors[name] for name in (WEIGHT, BIAS)}
    for encoder in encoders.values():
        yield client.load({**encoder, **head}).eval()


def with_encoders(
    client: Client, encoders: Mapping[str, Mapping[str, Tensor]], features: Tensor
) -> Client:
    """Return the client with a model that is a head on all encoders' features.

    Args:
        client: the client.
        encoders: weights and buffers of each cluster's encoder.
        features: of its training images [n, G d], which it trains on instead of the images.
    """
    width, train = features.shape[1], client.train
    model = ConcatenatedClassifier(client, encoders, width)
    setting = client.with_schedule(augment=NO_AUGMENTATION).setting
    labels, positions = train.labels.numpy(), np.arange(len(train))
    return replace(
        client,
        train=Samples(features.cpu().numpy(), labels, positions, ImageFeatures),
        setting=replace(setting, feature_dim=width),
        skeleton=Skeleton(model.to(client.device)),
    )


def _encoders(state: ServerState, server: Server) -> Encoders:
    """Return the clusters' models without their heads."""
    buffers = buffer_names(server.model)
    weights = tensor_names(server.model) - buffers - head_tensors(server.model)
    return Encoders(
        *(
            {g: select(model, names) for g, model in state["clusters"].items()}
            for names in (weights, buffers)
        )
    )


def concatenated_head(models: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Join the clusters' heads to one, whose logits are the sum of theirs.

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
        points: [N, C].
        count: G <= N; no cluster is empty.
        largest: the most points of a cluster, at least N/G.
        random: draws the starts.

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
    """Assign points to clusters at the least total cost, with 1 to `largest` points in each.

    Args:
        costs: of every point in every cluster [N, G], not negative.
        largest: at least N/G.
    """
    near: np.ndarray = costs.argmin(axis=1)
    sizes = np.bincount(near, minlength=costs.shape[1])
    if sizes.min() > 0 and sizes.max() <= largest:
        return near
    slots = np.repeat(costs, largest, axis=1)
    slots[:, ::largest] -= costs.sum() + 1  # the first slot of every cluster is filled first
    from scipy.optimize import linear_sum_assignment  # takes a second to import

    _, taken = linear_sum_assignment(slots)
    found: np.ndarray = taken // largest
    return found
