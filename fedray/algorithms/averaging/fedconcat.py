"""FedConcat: clusters of alike clients train encoders, which one classifier reads side by side.

Diao, Li and He, "Exploiting Label Skews in Federated Learning with Model Concatenation", AAAI 2024,
arXiv:2312.06290.

    clustering by label distribution -> cluster
    averaging inside clusters        -> FedConcat.server_update
    concatenation                    -> concatenated_head
    training of the classifier       -> FedConcat.train_head

Three stages: clients send their label distributions, and K-means makes G clusters of them; then
`cluster_rounds` rounds of FedAvg inside each cluster; then the G encoders are frozen, sent once to
everybody, and the remaining rounds train one classifier on their concatenated features, a few
batches each, averaged without weights. Frozen means computed once: clients keep the features of
their images, not the encoders.

Until the encoders have reached a client it predicts with its cluster's model. So before the third
stage there is no global accuracy, and local accuracies are those of the clusters' models.

Deviations:
    - By default the classifier starts as the clusters' heads side by side, their biases summed; the
      official code has that for CIFAR-100 and Tiny-ImageNet, and a random start for the others.
    - The largest cluster's bound is kept by an optimal assignment in each step of K-means, not by a
      greedy one, and no cluster is empty.
    - The classifier learns from images as they are, whatever `data.augment` says.
    - A client whose label distribution has not arrived counts as one with equal shares.

Buffers: as in FedAvg, inside each cluster; frozen encoders are in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedray.algorithms.base import Downlinks, Exchange, Server, ServerState, Uplinks
from fedray.algorithms.fedavg import FedAvg, GlobalModel, shares_of, weighted_mean
from fedray.algorithms.fedlc import class_counts
from fedray.algorithms.prototypes import features_of
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState, Samples, Skeleton
from fedray.comm import Payload, travels
from fedray.errors import UserError
from fedray.evaluation import Score
from fedray.models import (
    BackboneClassifier,
    buffer_names,
    head_tensors,
    initialise,
    tensor_names,
)

HEAD = ("head.weight", "head.bias")
CLUSTERS, REACHED = "clusters", "reached"
TRAIN, TEST = "features.train", "features.test"
RESTARTS = 10
"""Starts of K-means, of which the best counts."""
STEPS = 100
"""The most steps of one start; it ends when no point changes its cluster."""


@dataclass(frozen=True)
class LabelDistribution(Payload):
    """The share of each class among a client's training images [C]."""

    shares: Tensor = travels("statistics", "C")


@dataclass(frozen=True)
class Encoders(GlobalModel):
    """The clusters' encoders: weights and buffers by "cluster/tensor"."""


@dataclass(frozen=True)
class Receipt(Payload):
    """The encoders have arrived, and so many images have features now."""

    images: int = travels("statistics")


@dataclass(frozen=True)
class ConcatenatedHead(GlobalModel):
    """The classifier on concatenated features: weight [C, G d] and bias [C]."""


@algorithms.add
class FedConcat(FedAvg):
    """FedAvg in clusters, then one classifier; clients remember features of their images."""

    name = "fedconcat"
    paper = "Diao et al., AAAI 2024, arXiv:2312.06290"
    shares = "label distributions once; whole models in clusters; encoders once; classifiers"
    one_model = False  # not of the clients' architecture, and not from the start: `has_one_model`

    class HParams(FedAvg.HParams):
        """FedConcat's hyper-parameters; one cluster in every round is FedAvg."""

        clusters: int = Field(2, ge=1)
        """G, clusters; 1 is FedAvg, then a classifier. Not in FedGLCL's comparison; try 2 to 5."""
        largest: float | None = Field(None, ge=1)
        """The largest cluster, in N/G clients; null: no bound. Official code: 1.2 for CIFAR-100 and
        Tiny-ImageNet."""
        cluster_rounds: int | None = Field(None, ge=1)
        """Rounds inside the clusters, the first ones; null: half of `rounds`. As many as `rounds`
        leave the classifier out. FedGLCL's comparison: 50 of 1050."""
        head_batches: int = Field(3, ge=1)
        """Batches of each client in a round of the classifier. Paper: 3."""
        head_init: Literal["clusters", "random"] = "clusters"
        """The classifier's start: the clusters' heads, or random."""

    @property
    def cluster_rounds(self) -> int:
        """Rounds inside the clusters."""
        asked: int | None = self.hp.cluster_rounds
        return ceil(self.setting.rounds / 2) if asked is None else asked

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The initial weights, for every cluster.

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
        weights = super().init_server(server)
        state = {f"{g}/{n}": t.clone() for g in range(self.hp.clusters) for n, t in weights.items()}
        return {**state, REACHED: torch.zeros(self.setting.clients, dtype=torch.bool)}

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Ask everybody for its label distribution, and make the clusters."""
        answers = exchange.call("label_distribution", dict.fromkeys(exchange.everyone))
        classes, clients = self.setting.num_classes, len(exchange.everyone)
        points = np.full((clients, classes), 1 / classes)  # whoever did not answer counts as even
        for client, answer in answers.items():
            points[client] = answer.shares.numpy()
        count, largest = self.hp.clusters, clients
        if self.hp.largest is not None:
            largest = max(int(self.hp.largest * clients / count), ceil(clients / count))
        random = exchange.server.streams.numpy("fedconcat")
        return {**state, CLUSTERS: torch.from_numpy(cluster(points, count, largest, random))}

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """A round inside the clusters, or of the classifier on their frozen encoders."""
        if exchange.server.round <= self.cluster_rounds:
            return super().round(state, exchange)
        state = self._with_head(state, exchange.server)
        missing = [c for c in exchange.everyone if not state[REACHED][c]]
        if missing:
            down = dict.fromkeys(missing, self._encoders(state, exchange.server))
            receipts = exchange.call("receive_encoders", down)
            reached = state[REACHED].clone()
            reached[list(receipts)] = True
            state = {**state, REACHED: reached}
        ready = [c for c in exchange.participants if state[REACHED][c]]
        uplinks = exchange.call("train_head", self.downlink(state, ready, exchange.server))
        if not uplinks:
            return state
        return {**state, **weighted_mean(shares_of(uplinks, "uniform"), uplinks)}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The classifier to those who have the encoders, to others their cluster's model."""
        models = [
            GlobalModel.of(server.model, self._cluster(state, g)) for g in range(self.hp.clusters)
        ]
        if not self._has_head(state):
            return {c: models[int(state[CLUSTERS][c])] for c in clients}
        head = ConcatenatedHead({name: state[name] for name in HEAD}, {})
        return {c: head if state[REACHED][c] else models[int(state[CLUSTERS][c])] for c in clients}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """The mean of each cluster's participants; a cluster without any stays."""
        moved: dict[str, Tensor] = {}
        for g in range(self.hp.clusters):
            own = {c: upload for c, upload in uplinks.items() if state[CLUSTERS][c] == g}
            if own:
                mean = weighted_mean(shares_of(own, self.hp.weights), own)
                moved |= {f"{g}/{name}": tensor for name, tensor in mean.items()}
        return {**state, **moved}

    def has_one_model(self, state: ServerState) -> bool:
        """From the third stage on, or with one cluster."""
        return self._has_head(state) or self.hp.clusters == 1

    def _has_head(self, state: ServerState) -> bool:
        return HEAD[0] in state

    def _encoders(self, state: ServerState, server: Server) -> Encoders:
        buffers = buffer_names(server.model)
        weights = tensor_names(server.model) - buffers - head_tensors(server.model)
        every = range(self.hp.clusters)
        return Encoders(
            *(
                {f"{g}/{n}": state[f"{g}/{n}"] for g in every for n in sorted(names)}
                for names in (weights, buffers)
            )
        )

    def _cluster(self, state: ServerState, cluster: int) -> dict[str, Tensor]:
        prefix = f"{cluster}/"
        return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}

    def _with_head(self, state: ServerState, server: Server) -> ServerState:
        """The state with the classifier; its start, when the third stage begins."""
        if self._has_head(state):
            return state
        models = [self._cluster(state, g) for g in range(self.hp.clusters)]
        weight, bias = concatenated_head(models)
        if self.hp.head_init == "random":
            head = nn.Linear(weight.shape[1], weight.shape[0])
            initialise(head, server.streams.torch("fedconcat_head"))
            weight, bias = head.weight.detach(), head.bias.detach()
        return {**state, HEAD[0]: weight, HEAD[1]: bias}

    # --- client ----------------------------------------------------------------------------------

    def label_distribution(
        self, client: Client, state: ClientState, down: None
    ) -> tuple[LabelDistribution, ClientState]:
        """How the client's training images spread over the classes."""
        counts = class_counts(client).double()
        return LabelDistribution(counts / counts.sum()), state

    def receive_encoders(
        self, client: Client, state: ClientState, down: Encoders
    ) -> tuple[Receipt, ClientState]:
        """Compute the features of all own images, once, and forget the encoders."""
        head = {name: client.skeleton.tensors[name] for name in HEAD}
        found: dict[str, list[Tensor]] = {TRAIN: [], TEST: []}
        for g in range(self.hp.clusters):
            model = client.load({**self._cluster(down.model, g), **head})
            found[TRAIN].append(features_of(client, model, client.train))
            found[TEST].append(features_of(client, model, client.test))
        memory = {name: torch.cat(parts, dim=1).cpu() for name, parts in found.items()}
        images = sum(len(features) for features in memory.values())
        return Receipt(images), ClientState(state.model, {**state.memory, **memory})

    def train_head(
        self, client: Client, state: ClientState, down: ConcatenatedHead
    ) -> tuple[Payload | None, ClientState]:
        """Train the classifier on a few batches of features."""
        few = self.hp.head_batches * self.setting.training.batch_size
        random = self.setting.streams.torch("head_batches", round_=client.round, client=client.id)
        drawn = torch.randperm(len(client.train), generator=random)[:few].numpy()
        reading = self._reading(client, state, down)
        part = replace(reading.train, index=reading.train.index[drawn])
        return self.client_update(replace(reading, train=part).again(0, epochs=1), state, down)

    def evaluate(self, client: Client, state: ClientState, down: GlobalModel) -> Score:
        """Test the classifier on the kept features, or the cluster's model on images."""
        return super().evaluate(self._reading(client, state, down), state, down)

    def finetune(
        self, client: Client, state: ClientState, down: GlobalModel
    ) -> tuple[None, ClientState]:
        """As `Algorithm.finetune`, of the classifier on features where there is one."""
        return super().finetune(self._reading(client, state, down), state, down)

    def _reading(self, client: Client, state: ClientState, down: GlobalModel) -> Client:
        """The client that goes with what was sent: on features, or on images."""
        return on_features(client, state) if isinstance(down, ConcatenatedHead) else client


def on_features(client: Client, state: ClientState) -> Client:
    """A client whose images are their frozen features, and whose model is a head alone."""
    width = state.memory[TRAIN].shape[1]
    head = BackboneClassifier(nn.Identity(), width, width, client.setting.num_classes)
    plain = client.again(0, augment="none").setting
    return replace(
        client,
        train=_in_place_of(client.train, state.memory[TRAIN]),
        test=_in_place_of(client.test, state.memory[TEST]),
        setting=replace(plain, feature_dim=width),
        skeleton=Skeleton(head.to(client.device)),
    )


def _in_place_of(samples: Samples, features: Tensor) -> Samples:
    return Samples(features.numpy(), samples.all_labels[samples.index], np.arange(len(samples)))


def concatenated_head(models: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """The clusters' heads as one: its logits are the sum of theirs.

    Args:
        models: G models with heads of weight [C, d] and bias [C].

    Returns:
        Weight [C, G d] and bias [C].
    """
    weight = torch.cat([model[HEAD[0]] for model in models], dim=1)
    return weight, torch.stack([model[HEAD[1]] for model in models]).sum(dim=0)


def cluster(
    points: np.ndarray, count: int, largest: int, random: np.random.Generator
) -> np.ndarray:
    """K-means: the best of some starts from points drawn without replacement.

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
        own = np.full(len(points), -1)
        for _ in range(STEPS):
            costs = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
            before, own = own, assign(costs, largest)
            total = float(costs[np.arange(len(points)), own].sum())
            if np.array_equal(own, before):
                break
            centres = np.stack([points[own == g].mean(axis=0) for g in range(count)])
        if total < least - 1e-12:
            best, least = own, total
    order = {g: place for place, g in enumerate(dict.fromkeys(best.tolist()))}
    return np.array([order[g] for g in best.tolist()], dtype=np.int64)


def assign(costs: np.ndarray, largest: int) -> np.ndarray:
    """To each point its cluster at the least total cost, with 1 to `largest` points in each.

    Args:
        costs: of every point in every cluster [N, G], not negative.
        largest: at least N/G.
    """
    near: np.ndarray = costs.argmin(axis=1)
    sizes = np.bincount(near, minlength=costs.shape[1])
    if sizes.min() > 0 and sizes.max() <= largest:
        return near
    slots = np.repeat(costs, largest, axis=1)
    slots[:, ::largest] -= costs.sum() + 1  # the first place of every cluster is filled first
    _, taken = linear_sum_assignment(slots)
    found: np.ndarray = taken // largest
    return found
