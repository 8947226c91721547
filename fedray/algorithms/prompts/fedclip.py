"""FedCLIP: FedAvg of an adapter on CLIP's image features.

Lu et al., "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning", IEEE
Data Engineering Bulletin 2023, arXiv:2302.13485. As in the authors' code (microsoft/PersonalizedFL,
fedclip/, commit 441670e), clients weigh equally and the loss contrasts the images of a batch with
the texts of their classes.

    attention adapter -> AdapterClip.image_features
    symmetric contrast in the batch -> batch_contrast
    averaging of the adapter -> combined_rows, mean_of (core/sums.py)

Deviations:
    - The experiment's optimiser is used; official code: Adam with learning rate 5e-5, betas 0.9 and
      0.98, weight decay 0.2.
    - Clients train on a batch of one image, whose contrast is 0; the official code skips it.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.mean import Weights
from fedray.core import Batch, LocalContext, PromptMethod, method
from fedray.models import ClassifierOutput, Inputs, undrawn_linear
from fedray.models.prompted import PromptedClip, unit

PICTURE = "a picture of a {}"
"""The text of a class in FedCLIP's official code."""


class AdapterClip(PromptedClip):
    """A CLIP with a trained gate on image features and fixed texts."""

    def make_prompts(self, hparams: Any) -> None:
        first, second = (undrawn_linear(self.clip.dim, self.clip.dim) for _ in range(2))
        self.adapter = nn.Sequential(first, nn.Tanh(), second, nn.Softmax(dim=-1))

    def text_features(self) -> Tensor:
        return self.fixed_texts(PICTURE)

    def image_features(self, x: Inputs) -> Tensor:
        """Return softmax(W_2 tanh(W_1 I + b_1) + b_2) * I, scaled to unit length [B, d].

        I is the tower's output, which is not scaled before the gate, as in the official code.
        """
        image = self.encode(x).float()  # the adapter's type, whatever the tower's precision
        return unit(self.adapter(image) * image)


@method("fedclip", "FedCLIP", "Lu et al., IEEE Data Eng. Bull. 2023, arXiv:2302.13485")
class FedCLIP(PromptMethod, FedAvg):
    """FedAvg of an adapter on CLIP's image features, which is counted as weights."""

    clip_model = AdapterClip
    stacks = False
    version = 3  # the gate in float32

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (official code), or samples, n_k/n."""

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
