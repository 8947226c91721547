"""FedGen: clients also train on features from a generator that learns from all clients' heads.

Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
arXiv:2105.10056.

    Eq. (4) -> ensemble_loss
    Eq. (5) -> generated_loss
    G(z, y) -> generated_features
    p(y)    -> draw_labels

Clients share the classifier head, the only part that different architectures have in common. Heads
are averaged as in LG-FedAvg, and the generator learns from their ensemble.

Deviations, as in FedTSP's comparison where nothing else is stated:
    - Heads and ensemble are weighted by samples; the paper weights them equally
      (`weights=uniform`).
    - The generator's noise is uniform on [0, 1), as in FedTSP's and the authors' repositories; the
      paper's is Gaussian.
    - There is no diversity term, which the authors' repository adds to Eq. (4), and no schedule for
      the weight of Eq. (5).
    - Clients receive the trained generator. FedTSP's repository, like HtFLlib, never stores the
      generator that the server trains, so that clients always receive the initial one
      (`untrained=true`). The "server learning rate 100" in FedTSP's supplementary is the number of
      server steps.
    - Class counts include all training images; the loader of FedTSP's repository omits the last
      incomplete batch.
    - The generator's Adam is reset in every round; the authors' code and PFLlib keep its moments
      between rounds.

Buffers: those of the extractors are personal. The generator normalises each batch by its own
statistics, on the server and on clients, and has no running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.mean import Weights, client_weights, weighted_mean
from fedray.algorithms.personalised.shared_head import HeadAveraging
from fedray.algorithms.server_training import train_on_server
from fedray.config import Epochs, LearningRate, LossWeight
from fedray.core.optimizers import TorchAdam
from fedray.errors import UserError
from fedray.models import drawn_linear


@core.method("fedgen", "FedGen", "Zhu et al., ICML 2021, arXiv:2105.10056")
class FedGen(HeadAveraging):
    """Averaged heads, trained on generated features of all classes in addition to local images."""

    down: ClassVar[Any] = {
        "head": core.sent("weights", "the mean of the participants' heads"),
        "generator": core.sent("weights", "features that these heads classify as each class"),
        "counts": core.sent(
            "statistics",
            "how many images of each class all clients have together",
            "C",
            dtype=torch.int64,
        ),
    }

    generated_weight: LossWeight = 1.0
    """Weight of the loss on generated features, Eq. (5); 0 gives LG-FedAvg. Paper: 1."""
    weights: Weights = "samples"
    """Client weights in the mean of heads and in the ensemble: samples, n_k/n (FedTSP's
    comparison), or uniform, 1/K (paper)."""
    noise_dim: int = Field(32, ge=1, le=4096)
    """Width of the noise. FedTSP's comparison: 32."""
    hidden_dim: int = Field(512, ge=1, le=65536)
    """Width of the generator's hidden layer. FedTSP's comparison: 512."""
    server_epochs: Epochs = 100
    """Steps of the generator per round, each on a batch of `batch_size` labels. FedTSP's
    comparison: 100."""
    server_lr: LearningRate = 0.1
    """Adam's learning rate of the generator. FedTSP's comparison: 0.1, for a generator that
    clients never receive. At this rate the norm of generated features grows to many times that
    of real features, and clients' heads no longer learn; try 0.001."""
    untrained: StrictBool = False
    """Whether clients receive the generator with its initial weights (FedTSP's repository)."""

    def init_server(self, server: core.Server) -> core.ServerState:
        """Return the first client's head, and a generator with PyTorch's default initial weights.

        Raises:
            UserError: if `batch_size` is 1, because one sample has no batch statistics.
        """
        size = self.setting.training.batch_size
        if self.generated_weight and size < 2:
            raise UserError(
                f"fedgen's generator uses batch normalisation, but batch_size={size}; set "
                "batch_size to 2 or more, or algorithm=lg_fedavg, which has no generator"
            )
        return {
            **super().init_server(server),
            "generator": self._draw_generator(server),
            "counts": {},
        }

    def _draw_generator(self, server: core.Server) -> core.Tensors:
        random = server.streams.torch("fedgen")
        classes, d, hidden = self.setting.num_classes, self.setting.feature_dim, self.hidden_dim
        w1, b1 = drawn_linear(self.noise_dim + classes, hidden, random)
        w2, b2 = drawn_linear(hidden, d, random)
        scale, shift = torch.ones(hidden), torch.zeros(hidden)
        return {"w1": w1, "b1": b1, "scale": scale, "shift": shift, "w2": w2, "b2": b2}

    def prepare(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Collect the class counts of all clients."""
        return self._collect_counts(state, exchange)

    def round(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        """Collect class counts of clients that joined, or of all if images changed; run a round."""
        if exchange.server.round in self.setting.phases:
            state = {**state, "counts": {}}
        return super().round(self._collect_counts(state, exchange), exchange)

    def _collect_counts(self, state: core.ServerState, exchange: core.Exchange) -> core.ServerState:
        unknown = [client for client in exchange.everyone if str(client) not in state["counts"]]
        if not unknown:
            return state
        replies = exchange.call("count_classes", dict.fromkeys(unknown))
        counted = {str(client): reply.counts for client, reply in replies.items()}
        return {**state, "counts": {**state["counts"], **counted}}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        down = self.down(state["head"], state["generator"], self._summed_counts(state))
        return dict.fromkeys(clients, down)

    def _summed_counts(self, state: core.ServerState) -> Tensor:
        """Return the summed class counts of all clients [C]."""
        none = torch.zeros(self.setting.num_classes, dtype=torch.int64)
        return sum(state["counts"].values(), start=none)

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Train the generator on the participants' heads, Eq. (4), and average the heads."""
        if not uplinks:
            return state
        weights, generator = client_weights(uplinks, self.weights), state["generator"]
        if self.generated_weight and not self.untrained:
            generator = self._train_generator(state, weights, uplinks, server)
        heads = {client: upload.head for client, upload in uplinks.items()}
        return {"generator": generator, "head": weighted_mean(weights, heads)}

    def _train_generator(
        self,
        state: core.ServerState,
        weights: Mapping[int, float],
        uplinks: core.Uplinks,
        server: core.Server,
    ) -> core.Tensors:
        """Train a copy of the generator with Adam on Eq. (4), on the server's device."""
        device = server.device
        heads = {
            name: torch.stack([upload.head[name] for upload in uplinks.values()]).to(device)
            for name in state["head"]
        }
        shares = torch.tensor(list(weights.values()), device=device)
        random = server.streams.torch("fedgen_server", round_=server.round)
        counts = self._summed_counts(state)

        def loss(generator: core.Tensors, batch: tuple[Tensor, Tensor]) -> Tensor:
            noise, labels = (drawn.to(device) for drawn in batch)
            features = generated_features(generator, noise, labels)
            return ensemble_loss(features, labels, heads, shares)

        batches = (self._draw(counts, random) for _ in range(self.server_epochs))
        adam = partial(TorchAdam, lr=self.server_lr)
        return train_on_server(state["generator"], loss, batches, adam, device)[0]

    def _draw(self, counts: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw a batch of noise [B, n] and labels [B]."""
        size = self.setting.training.batch_size
        labels = draw_labels(counts, size, random)
        return torch.empty(size, self.noise_dim).uniform_(generator=random), labels

    @core.step(
        up={
            "counts": core.sent(
                "statistics",
                "how many images of each class the client has",
                "C",
                dtype=torch.int64,
            )
        }
    )
    def count_classes(
        self, client: core.Client, state: core.ClientState, down: None
    ) -> tuple[core.Tensors, core.ClientState]:
        """Upload the client's class counts."""
        return {"counts": client.class_counts}, state

    def train(self, local: core.LocalContext) -> core.Trained:
        """Train with a batch of generated features for each batch of images, Eq. (5)."""
        if self.generated_weight == 0:
            return super().train(local)
        client, down = local.client, local.down
        random = client.random("fedgen")
        config, counts = self.setting.training, down.counts.cpu()
        batches = config.epochs * len(core.batch_sizes(len(client.train), config))
        draws = [self._draw(counts, random) for _ in range(batches)]  # one transfer to the device
        noises, targets = (torch.stack(tensors) for tensors in zip(*draws, strict=True))
        drawn = zip(noises.to(client.device), targets.to(client.device), strict=True)

        def loss(batch: core.Batch) -> Tensor:
            supervised = self.loss(local.model(batch.inputs), batch, local)
            noise, labels = next(drawn)
            with torch.no_grad():
                features = generated_features(down.generator, noise, labels)
            return supervised + self.generated_weight * generated_loss(
                local.model.head, features, labels
            )

        return core.fit(local, loss)


def draw_labels(counts: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Draw labels y ~ p(y) [B], where p(y) is the share of class y among all clients' images.

    Args:
        counts: number of images of each class [C].
        size: B.
        random: a generator on the CPU.
    """
    return torch.multinomial(counts.double(), size, replacement=True, generator=random)


def generated_features(generator: Mapping[str, Tensor], noise: Tensor, labels: Tensor) -> Tensor:
    """Return G(z, y) [B, d]: linear, batch norm, ReLU, linear; in float32 under autocast too.

    Args:
        generator: w1 [hidden, n + C], b1, scale and shift [hidden], w2 [d, hidden], b2 [d].
        noise: z [B, n].
        labels: y [B].
    """
    with torch.autocast(noise.device.type, enabled=False):
        classes = generator["w1"].shape[1] - noise.shape[1]
        entering = torch.cat([noise, F.one_hot(labels, classes).to(noise)], dim=1)
        hidden = F.linear(entering, generator["w1"], generator["b1"])
        scale, shift = generator["scale"], generator["shift"]
        normal = F.batch_norm(hidden, None, None, scale, shift, training=True)
        return F.linear(F.relu(normal), generator["w2"], generator["b2"])


def ensemble_loss(
    features: Tensor, labels: Tensor, heads: Mapping[str, Tensor], shares: Tensor
) -> Tensor:
    """Return the cross-entropy of sum_k p_k h_k(G(z, y)) with y, Eq. (4).

    Args:
        features: generated features [B, d].
        labels: y [B].
        heads: weight [K, C, d] and bias [K, C] of the participants' heads.
        shares: p_k [K]; 1/K in the paper.
    """
    weight, bias = heads["weight"], heads["bias"]
    logits = F.linear(features, weight.flatten(0, 1), bias.flatten())  # [B, K·C]
    logits = logits.reshape(-1, *bias.shape)
    return F.cross_entropy((logits * shares.unsqueeze(1)).sum(1), labels)


def generated_loss(head: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the client's head on generated features, Eq. (5)'s second term.

    Args:
        head: module from features to logits; only the head receives gradients.
        features: generated features [B, d].
        labels: labels from which the features were generated [B].
    """
    return F.cross_entropy(head(features), labels)
