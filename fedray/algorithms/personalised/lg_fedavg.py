"""LG-FedAvg: extractors are trained at each client, and the heads on top are averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020, arXiv:2001.01523.

    Algorithm 1, server line -> combined_rows, mean_of (core/sums.py)
    Algorithm 1, client      -> LGFedAvg.begin

Deviations:
    - The global part is the classifier head alone, as in FedTSP's comparison, because clients with
      different architectures have only the head in common. The paper shares the last layers of
      equal architectures.
    - Clients start from initial weights, as in FedTSP's comparison; the official code can also
      start from a model trained by FedAvg.

Buffers: those of the extractors are personal; heads have none.
"""

from fedray.algorithms.personalised.shared_head import HeadAveraging
from fedray.core import method


@method("lg_fedavg", "LG-FedAvg", "Liang et al., 2020, arXiv:2001.01523")
class LGFedAvg(HeadAveraging):
    """Averaging of classifier heads, weighted by samples; extractors stay personal."""
