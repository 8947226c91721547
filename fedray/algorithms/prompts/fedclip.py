"""FedCLIP: FedAvg of an adapter on CLIP's image features.

Lu et al., "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning", IEEE
Data Engineering Bulletin 2023, arXiv:2302.13485. As in the authors' code (microsoft/PersonalizedFL,
fedclip/, commit 441670e), clients weigh equally and the loss contrasts the images of a batch with
the texts of their classes.

    attention adapter -> AdapterClip.image_features  (models/prompted/adapter.py)
    symmetric contrast in the batch -> batch_contrast
    averaging of the adapter -> weighted_mean  (mean.py)

Deviations:
    - The experiment's optimiser is used; official code: Adam with learning rate 5e-5, betas 0.9 and
      0.98, weight decay 0.2.
    - Clients train on a batch of one image, whose contrast is 0; the official code skips it.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.mean import Weights
from fedray.core import Batch, LocalContext, PromptMethod, algorithms
from fedray.models import ClassifierOutput
from fedray.models.clip import FrozenClip
from fedray.models.prompted import AdapterClip, PromptedClip


@algorithms.add
class FedCLIP(PromptMethod, FedAvg):
    """FedAvg of an adapter on CLIP's image features, which is counted as weights."""

    name = "fedclip"
    title = "FedCLIP"
    paper = "Lu et al., IEEE Data Eng. Bull. 2023, arXiv:2302.13485"
    travels = "an adapter of image features"
    version = 2  # the official code's loss, gate, texts and weights

    class HParams(FedAvg.HParams):
        """Hyper-parameters of FedCLIP."""

        weights: Weights = "uniform"
        """Client weights in the mean: uniform, 1/K (official code), or samples, n_k/n."""

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return AdapterClip(clip, class_names)

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return CLIP's symmetric contrast of the batch's images and the texts of their classes."""
        return batch_contrast(output.logits, batch.labels)


def batch_contrast(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the cross-entropies over a batch's texts and over its images.

    Each image has its own text, so that other images of its class are negatives.

    Args:
        logits: scaled cosines of images and classes [B, C].
        labels: classes of the images [B].
    """
    pairs = logits[:, labels]
    own = torch.arange(len(labels), device=labels.device)
    return (F.cross_entropy(pairs, own) + F.cross_entropy(pairs.T, own)) / 2
