"""FedProx: FedAvg with a proximal term that holds local weights near the global ones.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv:1812.06127.

    Eq. (2) -> proximal_term (losses.py)
"""

from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.losses import proximal_term
from fedray.core import Batch, ClassifierOutput, LocalContext, LossWeight, method


@method("fedprox", "FedProx", "Li et al., MLSys 2020, arXiv:1812.06127")
class FedProx(FedAvg):
    """FedAvg with a proximal term that holds local weights near the global ones."""

    mu: LossWeight = 0.001
    """μ, weight of the proximal term; 0 gives FedAvg. FedGLCL's comparison: 1e-3 or 1e-4."""

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        loss = super().loss(output, batch, local)
        return loss + proximal_term(local.model, local.down.model, self.mu)
