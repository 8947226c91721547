"""LG-FedAvg: representations are learnt at each client, the head above them is averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020, arXiv:2001.01523.

    Algorithm 1, server line -> Averaging.summand, Averaging.server_step (mean.py)
    Algorithm 1, client      -> LGFedAvg.begin

Deviations:
    - The global part is the classifier head alone, as in FedTSP's comparison: all that clients of
      unlike architectures have in common. The paper shares the last layers of equal ones.
    - Everybody starts from initial weights, as in that comparison; the official code can also
      start from a model that FedAvg has trained.

Buffers: those of the extractors are personal; heads have none.
"""

from __future__ import annotations

from fedray.algorithms.personalised.shared_head import HeadAveraging
from fedray.core import algorithms


@algorithms.add
class LGFedAvg(HeadAveraging):
    """Heads are averaged by samples; extractors stay personal."""

    name = "lg_fedavg"
    title = "LG-FedAvg"
    paper = "Liang et al., 2020, arXiv:2001.01523"
    travels = "classifier heads"
