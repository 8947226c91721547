"""MOON: clients keep their features near the global model's, away from their own last ones.

Li et al., "Model-Contrastive Federated Learning", CVPR 2021, arXiv:2103.16257.

    Eq. (3) -> model_contrast

Deviations:
    - In a client's first round there is no previous model and the term is left out, as in the
      official code, whose pool is empty then.
    - The representation z is the classifier's input: with `model.projector`, the projector's
      output as in the paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from fedray.algorithms.fedavg import FedAvg, GlobalModel
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState, Tensors
from fedray.models import Classifier

PREVIOUS = "previous."


@algorithms.add
class Moon(FedAvg):
    """FedAvg with a contrast of models; clients remember their last one."""

    name = "moon"
    paper = "Li et al., CVPR 2021, arXiv:2103.16257"
    shares = "whole models"

    class HParams(FedAvg.HParams):
        """MOON's hyper-parameters."""

        mu: float = Field(1.0, ge=0)
        """μ, weight of the contrast; 0 is FedAvg. FedGLCL's comparison: 1; paper tunes .1 to 10."""
        tau_moon: float = Field(0.5, gt=0)
        """τ of the contrast. Paper: 0.5."""

    def local_loss(
        self, model: Classifier, batch: Batch, down: GlobalModel, state: ClientState
    ) -> Tensor:
        """The supervised loss and the contrast, Eq. (3)."""
        output = model(batch.images)
        loss = self.supervised_loss(output, batch.labels, state)
        previous = {
            name.removeprefix(PREVIOUS): tensor
            for name, tensor in state.memory.items()
            if name.startswith(PREVIOUS)
        }
        if self.hp.mu == 0 or not previous:
            return loss
        now = {**previous, **down.model}
        near = frozen_features(model, now, batch.images)
        far = frozen_features(model, previous, batch.images)
        contrast = model_contrast(output.features, near, far, self.hp.tau_moon)
        return loss + contrast * float(self.hp.mu)

    def keep(self, client: Client, model: Classifier, state: ClientState) -> ClientState:
        """What is not shared, and the whole model as the next round's previous one."""
        kept = super().keep(client, model, state)
        if self.hp.mu == 0:
            return kept
        previous = {PREVIOUS + name: tensor for name, tensor in client.save(model).items()}
        return ClientState(kept.model, {**kept.memory, **previous})


def model_contrast(features: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """-log(e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau})), Eq. (3).

    Args:
        features: z [B, d].
        near: z_glob [B, d], of the global model.
        far: z_prev [B, d], of the client's previous model.
        tau: temperature.

    Returns:
        The mean over the batch; ln 2 where both are equal.
    """
    cosines = torch.stack([F.cosine_similarity(features, z, dim=1) for z in (near, far)], dim=1)
    return F.cross_entropy(cosines / tau, cosines.new_zeros(len(cosines), dtype=torch.long))


@torch.no_grad()
def frozen_features(model: Classifier, weights: Tensors, images: Tensor) -> Tensor:
    """Features [B, d] under other weights, in evaluation mode; the model stays as it is."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    placed = {name: tensor.to(images.device) for name, tensor in weights.items()}
    features: Tensor = functional_call(model, placed, (images,)).features
    for module, mode in modes:
        module.training = mode
    return features
