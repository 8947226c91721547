"""NewMethod: federated averaging with a penalty on confident predictions.

Replace the penalty by your own idea. Run the method with

    fedray run fedavg_digits --plugin new_method.py algorithm=new_method

It runs on Ray, with checkpoints, traffic counts, tracking, and sweeps over `algorithm.tax`.
docs/hooks.md of fedray lists all methods that you can override.

    Eq. (1) -> negative_entropy
"""

from __future__ import annotations

from torch import Tensor

from fedray.plugin import Batch, ClassifierOutput, FedAvg, LocalContext, LossWeight, algorithms


@algorithms.add  # registers `name`, for `algorithm=new_method`
class NewMethod(FedAvg):  # inherits the rest from FedAvg: payloads and averaging on the server
    """FedAvg with a penalty on confident predictions."""

    name = "new_method"
    title = "NewMethod"
    paper = "-"  # for example "Doe et al., CVPR 2027, arXiv:2701.00001"

    class HParams(FedAvg.HParams):
        """Hyper-parameters of NewMethod, each with a type, bounds, default and description."""

        tax: LossWeight = 0.1
        """Weight of the negative entropy; 0 gives FedAvg."""

    hp: HParams

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the loss of one batch: the loss of FedAvg plus the penalty.

        `output` contains features [B, d] and logits [B, C]; `batch` contains inputs and labels;
        `local` contains the client, its model and state, and the server's payload (`local.down`).
        """
        return super().loss(output, batch, local) + self.hp.tax * negative_entropy(output.logits)


def negative_entropy(logits: Tensor) -> Tensor:
    """Return the sum of p log p over C classes, averaged over a batch [B, C]; Eq. (1)."""
    logs = logits.log_softmax(-1)
    return (logs.exp() * logs).sum(-1).mean()
