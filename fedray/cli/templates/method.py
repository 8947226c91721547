"""NewMethod: federated averaging with a penalty on confident predictions.

Replace the penalty by your own idea. Run the method with

    fedray run fedavg_digits --plugin new_method.py algorithm=new_method

It runs on Ray, with checkpoints, traffic counts, tracking, and sweeps over `algorithm.tax`.
docs/hooks.md of fedray lists all methods that you can override.

    Eq. (1) -> negative_entropy
"""

from __future__ import annotations

from torch import Tensor

from fedray.plugin import Batch, ClassifierOutput, FedAvg, LocalContext, LossWeight, method


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(FedAvg):  # inherits the rest from FedAvg: what travels, and averaging
    """FedAvg with a penalty on confident predictions."""

    tax: LossWeight = 0.1  # a hyper-parameter: `algorithm.tax`
    """Weight of the negative entropy; 0 gives FedAvg."""

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return the loss of one batch: the loss of FedAvg plus the penalty.

        `output` contains features [B, d] and logits [B, C]; `batch` contains inputs and labels;
        `local` contains the client, its model and state, and the server's payload (`local.down`).
        """
        return super().loss(output, batch, local) + self.tax * negative_entropy(output.logits)


def negative_entropy(logits: Tensor) -> Tensor:
    """Return the sum of p log p over C classes, averaged over a batch [B, C]; Eq. (1)."""
    logs = logits.log_softmax(-1)
    return (logs.exp() * logs).sum(-1).mean()
