"""FedProto with one global model: weights and class prototypes are averaged.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243, in the homogeneous form of FedGLCL's comparison.

    Eq. (6) -> by_class, class_average (mean.py)
    Eq. (7) -> prototype_loss (prototypes/class_prototypes.py)

Deviations:
    - The weights are averaged as in FedAvg, so that a global model can be tested; the paper's
      clients share prototypes alone (`fedproto`).
    - The distance is a mean squared error over batch and width, as in the official code; the paper
      writes a plain L2 norm.
    - Prototypes are computed by one pass in evaluation mode after training, with the client's
      weights before averaging.

Buffers: as in FedAvg.
"""

from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.mean import ClassWeights
from fedray.algorithms.prototypes.class_prototypes import PrototypeAveraging, prototype_loss
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.core import Batch, ClassifierOutput, LocalContext, LossWeight, method


@method("fedproto_global", "FedProto, one global model", FedProto.paper)
class FedProtoGlobal(PrototypeAveraging, FedAvg):
    """FedAvg with a loss that pulls features to class prototypes averaged over all clients."""

    version = 2  # the order in which privacy noises an upload's fields
    one_model = True
    dense = False

    proto_agg: ClassWeights = "weighted"
    """Mean of a class's prototypes: weighted, by samples (paper), or uniform, by clients (code)."""
    mu: LossWeight = 1.0
    """μ, weight of the prototype term; 0 gives FedAvg. FedGLCL's comparison: 1; paper's λ: 1."""

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropy plus the prototype term, Eq. (7)."""
        return prototype_loss(output, batch.labels, local.down, self.mu)
