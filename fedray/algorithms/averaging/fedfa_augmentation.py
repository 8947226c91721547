"""FedFA: features are augmented according to the variance of their statistics over clients.

Zhou and Konukoglu, "FedFA: Federated Feature Augmentation", ICLR 2023, arXiv:2301.12995.

    channel statistics      -> channel_statistics
    federated variances     -> FedFAAugmentation.server_update, variance_over_clients
    fusion                  -> fusion_weights
    augmentation of a batch -> augment_maps

The registered name contains "augmentation" because another method is called FedFA too (feature
anchors). An augmentation layer follows every stage of convolutions. The layers have no parameters
and are active only in training.

Deviations:
    - V is one variance per channel, as in the paper. The official code takes one variance over
      clients and channels jointly, which makes all fusion weights 1.
    - Running means stay with their client. The official code averages them over clients, like every
      buffer, so that all clients start a round with the same ones.
    - A batch of one image, and maps of one pixel, have no variance and are not augmented.

Buffers: as in FedAvg; the running means are client state, not buffers of the model.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import UserError
from fedray.core import Classifier, LocalContext, Server, ServerState, StepResult, Trained, Uplinks
from fedray.models import convolution_stages

EPS = 1e-6


@core.method(
    "fedfa_augmentation", "FedFA (augmentation)", "Zhou & Konukoglu, ICLR 2023, arXiv:2301.12995"
)
class FedFAAugmentation(FedAvg):
    """FedAvg with feature augmentation; clients store running means of channel statistics."""

    version = 2  # the variance over clients in double precision
    dense = False
    down = {"variances": core.sent("statistics", "how much the participants' maps differ")}
    up = {"running": core.sent("statistics", "means and deviations of its maps, never noised")}
    """V of every stage's means and deviations [channels], at first empty, and a client's running
    means of these statistics."""

    probability: float = Field(0.5, ge=0, le=1)
    """p, probability that a stage's maps are augmented; 0 gives FedAvg. Paper: 0.5."""
    momentum: float = Field(0.99, ge=0, le=1)
    """Momentum of the running means of channel statistics. Official code: 0.99."""

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights and no variances V; clients use 1 for a missing V."""
        if not convolution_stages(server.model):
            raise UserError(f"model.group: {server.architecture} has no convolutions to augment")
        return {**super().init_server(server), "variances": {}}

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average the weights; update V of every statistic that at least two clients uploaded."""
        variances, running = dict(state["variances"]), [one.running for one in uplinks.values()]
        for name in sorted(set().union(*running)):
            means = [of_client[name] for of_client in running if name in of_client]
            if len(means) > 1:
                variances[name] = variance_over_clients(torch.stack(means))
        return {**super().server_update(state, uplinks, server), "variances": variances}

    def train(self, local: LocalContext) -> Trained:
        """Train with augmentation layers, which update the client's running means."""
        running = local.notes["running"] = dict(local.state.memory.get("running", {}))
        random = local.client.random("fedfa_augmentation")
        share, variances = self.probability, local.down.variances
        layers = AugmentationLayers(share, self.momentum, random, variances, running)
        with layers.on(local.model):
            return super().train(local)

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        """Upload the model, without the layers, and the running means, and keep these."""
        upload, state = super().finish(local, trained)
        return {**upload, **local.notes}, state.with_memory(**local.notes)


@dataclass
class AugmentationLayers:
    """The augmentation layers after the stages of one model, during its training.

    Attributes:
        probability: probability that a stage's maps are augmented.
        momentum: momentum of the running means.
        random: generator of all draws.
        variances: V [channels] by stage and statistic, "0.mean", "0.std", ...; 1 where missing.
        running: the client's running means by the same names; means start at 0, deviations at 1.
    """

    probability: float
    momentum: float
    random: torch.Generator
    variances: Mapping[str, Tensor]
    running: dict[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def on(self, model: Classifier) -> Iterator[None]:
        """Register the augmentation after every stage of the model; remove it on exit."""
        with ExitStack() as hooks:
            for stage, end in enumerate(convolution_stages(model)):
                hooks.enter_context(end.register_forward_hook(partial(self._layer, stage)))
            yield

    def _layer(self, stage: int, module: nn.Module, inputs: Any, maps: Tensor) -> Tensor | None:
        if float(torch.rand((), generator=self.random)) >= self.probability:
            return None
        if len(maps) < 2 or maps[0, 0].numel() < 2:
            return None
        mean, std = channel_statistics(maps)
        alpha = self._draw(f"{stage}.std", std, 1.0)
        beta = self._draw(f"{stage}.mean", mean, 0.0)
        return augment_maps(maps, mean, std, alpha, beta)

    def _draw(self, name: str, statistic: Tensor, initial: float) -> Tensor:
        """Update the running mean, then draw new statistics [B, C] around the batch's."""
        now = statistic.detach().mean(dim=0)
        before = self.running.get(name, torch.full_like(now, initial))
        self.running[name] = self.momentum * before + (1 - self.momentum) * now
        weight = fusion_weights(self.variances.get(name, torch.ones_like(now)))
        spread = ((weight + 1) * (statistic.var(dim=0) + EPS)).sqrt()
        noise = torch.randn(statistic.shape, generator=self.random).to(statistic)
        return statistic + noise * spread


def channel_statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations [B, C] over the pixels of maps [B, C, H, W], float32."""
    maps = maps.float()
    return maps.mean(dim=(2, 3)), (maps.var(dim=(2, 3)) + EPS).sqrt()


def variance_over_clients(running: Tensor) -> Tensor:
    """Return V [C], the variance of the running means [K, C] over K > 1 clients."""
    return running.double().var(dim=0).float()


def fusion_weights(variances: Tensor) -> Tensor:
    """Return gamma_c = C * g_c / sum g with g = 1 / (1 + 1/V), which sum to C, from V [C]."""
    g = 1 / (1 + 1 / (variances + EPS))
    return len(g) * g / g.sum()


def augment_maps(maps: Tensor, mean: Tensor, std: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return alpha * (x - mu) / sigma + beta for every channel of maps x [B, C, H, W].

    mu, sigma, the new deviations alpha and the new means beta are [B, C].
    """
    mean, std, alpha, beta = (value[:, :, None, None] for value in (mean, std, alpha, beta))
    return (alpha * (maps - mean) / std + beta).to(maps.dtype)
