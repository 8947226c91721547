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

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.mean import Weights, client_weights, weighted_mean
from fedray.algorithms.personalised.shared_head import HeadAveraging
from fedray.algorithms.server_training import train_on_server
from fedray.base.errors import UserError
from fedray.core import Client, ClientState, Downlinks, Server, ServerState, StepResult, Uplinks
from fedray.core.optimizers import TorchAdam
from fedray.models import drawn_linear

OF_ALL = "how many images of each class all clients have together"
OF_CLIENT = "how many images of each class the client has"


@core.method("fedgen", "FedGen", "Zhu et al., ICML 2021, arXiv:2105.10056")
class FedGen(HeadAveraging):
    """Averaged heads, trained on generated features of all classes in addition to local images."""

    down = {
        "generator": core.sent("weights", "features that these heads classify as each class"),
        "counts": core.sent("statistics", OF_ALL, "C", dtype=torch.int64),
    }

    generated_weight: core.LossWeight = 1.0
    """Weight of the loss on generated features, Eq. (5); 0 gives LG-FedAvg. Paper: 1."""
    weights: Weights = "samples"
    """Client weights in the mean of heads and in the ensemble: samples, n_k/n (FedTSP's
    comparison), or uniform, 1/K (paper)."""
    noise_dim: int = Field(32, ge=1, le=4096)
    """Width of the noise. FedTSP's comparison: 32."""
    hidden_dim: int = Field(512, ge=1, le=65536)
    """Width of the generator's hidden layer. FedTSP's comparison: 512."""
    server_epochs: core.Epochs = 100
    """Steps of the generator per round, each on `batch_size` labels. FedTSP's comparison: 100."""
    server_lr: core.LearningRate = 0.1
    """Adam's learning rate of the generator. FedTSP's comparison: 0.1, for a generator that
    clients never receive. At this rate the norm of generated features grows to many times that
    of real features, and clients' heads no longer learn; try 0.001."""
    untrained: StrictBool = False
    """Whether clients receive the generator with its initial weights (FedTSP's repository)."""

    def init_server(self, server: Server) -> ServerState:
        """Return the first client's head, and a generator with PyTorch's default initial values."""
        if self.generated_weight and self.setting.training.batch_size < 2:
            raise UserError("batch_size=1 has no batch statistics, which fedgen's generator needs")
        random, hidden = server.streams.torch("fedgen"), self.hidden_dim
        w1, b1 = drawn_linear(self.noise_dim + self.setting.num_classes, hidden, random)
        w2, b2 = drawn_linear(hidden, self.setting.feature_dim, random)
        first = {"w1": w1, "b1": b1, "scale": torch.ones(hidden), "shift": torch.zeros(hidden)}
        generator = {**first, "w2": w2, "b2": b2}
        return {**super().init_server(server), "generator": generator, "counts": {}}

    def prepare(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Collect the class counts of clients that have not sent theirs."""
        unknown = [client for client in exchange.everyone if str(client) not in state["counts"]]
        replies = exchange.call("count_classes", dict.fromkeys(unknown)) if unknown else {}
        counted = {str(client): reply.counts for client, reply in replies.items()}
        return {**state, "counts": {**state["counts"], **counted}}

    def round(self, state: ServerState, exchange: core.Exchange) -> ServerState:
        """Collect class counts of clients that joined, or of all if images changed; run a round."""
        known = {} if exchange.server.round in self.setting.phases else state["counts"]
        return super().round(self.prepare({**state, "counts": known}, exchange), exchange)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        return super().downlink({**state, "counts": self.summed(state["counts"])}, clients, server)

    def summed(self, counts: Mapping[str, Tensor]) -> Tensor:
        """Return the class counts of all clients together [C]."""
        none = torch.zeros(self.setting.num_classes, dtype=torch.int64)
        return sum(counts.values(), start=none)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average the heads, and train the generator with Adam on the uploaded ones, Eq. (4)."""
        weights = client_weights(uplinks, self.weights)
        uploaded = {client: upload.head for client, upload in uplinks.items()}
        after = {"head": weighted_mean(weights, uploaded)}
        if self.generated_weight == 0 or self.untrained:
            return after
        device, counts = server.device, self.summed(state["counts"])
        random = server.streams.torch("fedgen_server", round_=server.round)
        stacked = core.stack_trees([*uploaded.values()])
        heads = {name: tensor.to(device) for name, tensor in stacked.items()}
        shares = torch.tensor([*weights.values()], device=device)

        def loss(generator: core.Tensors, batch: tuple[Tensor, Tensor]) -> Tensor:
            noise, labels = (drawn.to(device) for drawn in batch)
            features = generated_features(generator, noise, labels)
            return ensemble_loss(features, labels, heads, shares)

        batches = (self.draw(counts, random) for _ in range(self.server_epochs))
        initial, lr = state["generator"], self.server_lr
        generator, _ = train_on_server(server, initial, loss, batches, lr, TorchAdam)
        return {**after, "generator": generator}

    def draw(self, counts: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw a batch of noise [B, n] and labels [B]."""
        size = self.setting.training.batch_size
        labels = draw_labels(counts, size, random)
        return torch.empty(size, self.noise_dim).uniform_(generator=random), labels

    @core.step(up={"counts": core.sent("statistics", OF_CLIENT, "C", dtype=torch.int64)})
    def count_classes(self, client: Client, state: ClientState, down: None) -> StepResult:
        """Upload the client's class counts."""
        return {"counts": client.class_counts}, state

    def train(self, local: core.LocalContext) -> core.Trained:
        """Train with a batch of generated features for each batch of images, Eq. (5)."""
        if self.generated_weight == 0:
            return super().train(local)
        client, down, supervised = local.client, local.down, self.batch_loss(local)
        random, counts = client.random("fedgen"), down.counts.cpu()
        config = self.setting.training
        batches = config.epochs * len(core.batch_sizes(len(client.train), config))
        draws = [self.draw(counts, random) for _ in range(batches)]  # one transfer to the device
        noises, targets = (torch.stack(t).to(client.device) for t in zip(*draws, strict=True))
        drawn = zip(noises, targets, strict=True)

        def loss(batch: core.Batch) -> Tensor:
            value, (noise, labels) = supervised(batch), next(drawn)
            with torch.no_grad():
                features = generated_features(down.generator, noise, labels)
            term = generated_loss(local.model.head, features, labels)
            return value + self.generated_weight * term

        return core.fit(local, loss)


def draw_labels(counts: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Draw B = `size` labels y ~ p(y), the share of class y among all clients' images.

    `counts` are the numbers of images of each class [C]; the generator is on the CPU.
    """
    return torch.multinomial(counts.double(), size, replacement=True, generator=random)


def generated_features(generator: Mapping[str, Tensor], noise: Tensor, labels: Tensor) -> Tensor:
    """Return G(z, y) [B, d] from noise z [B, n]: linear, batch norm, ReLU, linear.

    The generator has w1 [hidden, n + C], b1, scale and shift [hidden], w2 [d, hidden], b2 [d]. It
    computes in float32 under autocast too.
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

    Generated features are [B, d]; the participants' heads have weight [K, C, d] and bias [K, C];
    `shares` are p_k [K], 1/K in the paper.
    """
    weight, bias = heads["weight"], heads["bias"]
    logits = F.linear(features, weight.flatten(0, 1), bias.flatten())  # [B, K·C]
    logits = logits.reshape(-1, *bias.shape)
    return F.cross_entropy((logits * shares.unsqueeze(1)).sum(1), labels)


def generated_loss(head: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of a client's head on generated features, second term of Eq. (5)."""
    return F.cross_entropy(head(features), labels)
