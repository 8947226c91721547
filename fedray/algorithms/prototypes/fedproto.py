"""FedProto: clients pull their features to class prototypes averaged over all clients.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243.

    Eq. (6) -> by_class, class_average (mean.py)
    Eq. (7) -> prototype_loss (prototypes/class_prototypes.py)

Deviations:
    - The distance is a mean squared error over batch and width, as in the official code and
      HtFLlib; the paper writes a plain L2 norm. The scale of λ depends on this: HtFLlib's scripts
      use λ = 10, and FedTGP's paper, with the Euclidean distance, 0.1. λ = 1 as in FedTSP's
      supplementary C.4.
    - Prototypes are computed by one pass in evaluation mode after training. HtFLlib and FedTSP's
      fork of it average features during training, while the weights change.
    - The server weights prototypes by samples, as in the paper; HtFLlib and FedTSP's fork weight
      them equally (`proto_agg=uniform`).
    - A class without uploads keeps its prototype; HtFLlib drops the prototype.
    - The classifier head predicts, as in FedTSP's fork; HtFLlib predicts the class of the nearest
      prototype, which the paper also describes.
"""

from torch import Tensor

from fedray.algorithms.mean import ClassWeights
from fedray.algorithms.prototypes.class_prototypes import PrototypeAveraging, prototype_loss
from fedray.core import Batch, ClassifierOutput, LocalContext, LossWeight, method


@method("fedproto", "FedProto", "Tan et al., AAAI 2022, arXiv:2105.00243")
class FedProto(PrototypeAveraging):
    """Averaging of class prototypes, to which clients pull their features; models stay personal."""

    lambda_: LossWeight = 1.0
    """λ, weight of the prototype term; 0 gives Local. Paper: 1; FedTSP's comparison: 1."""
    proto_agg: ClassWeights = "weighted"
    """Mean of a class's prototypes, Eq. (6): weighted, by samples (paper), or uniform, over the
    clients that hold the class (HtFLlib)."""

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the cross-entropy plus the prototype term, Eq. (7)."""
        return prototype_loss(output, batch.labels, local.down, self.lambda_)
