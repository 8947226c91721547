"""FedCLIP: FedAvg of an adapter on CLIP's image features.

Lu et al., "FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning", IEEE
Data Engineering Bulletin 2023, arXiv:2302.13485.

    attention adapter -> AdapterClip.image_features  (models/prompted/adapter.py)
    averaging of the adapter -> weighted_mean  (mean.py)

Deviations:
    - The experiment's optimiser is used; official code: Adam.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import PromptMethod, algorithms
from fedray.models.clip import FrozenClip
from fedray.models.prompted import AdapterClip, PromptedClip


@algorithms.add
class FedCLIP(PromptMethod, FedAvg):
    """FedAvg of an adapter on CLIP's image features, which is counted as weights."""

    name = "fedclip"
    title = "FedCLIP"
    paper = "Lu et al., IEEE Data Eng. Bull. 2023, arXiv:2302.13485"
    travels = "an adapter of image features"

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return AdapterClip(clip, class_names)
