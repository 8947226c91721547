"""NewMethod: federated averaging that taxes confident answers. Replace it by your own idea.

    Eq. (1) -> negative_entropy

    fedray run fedavg_digits --plugin new_method.py algorithm=new_method

runs it, on Ray too, with checkpoints, the count of what is sent, tracking, and sweeps over
`algorithm.tax`. docs/hooks.md of fedray lists everything that a method may override.
"""

from __future__ import annotations

from torch import Tensor

from fedray.plugin import Batch, ClassifierOutput, FedAvg, LocalContext, LossWeight, algorithms


@algorithms.add  # under `name`, for `algorithm=new_method`
class NewMethod(FedAvg):  # what it does not say, FedAvg does: what is sent, how the server averages
    """FedAvg with a tax on confident answers."""

    name = "new_method"
    title = "NewMethod"
    paper = "-"  # for example "Doe et al., CVPR 2027, arXiv:2701.00001"

    class HParams(FedAvg.HParams):
        """NewMethod's hyper-parameters: typed, each with its bounds and what it means."""

        tax: LossWeight = 0.1
        """Weight of the negative entropy; 0 is FedAvg."""

    hp: HParams

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return one batch's loss: FedAvg's, and the tax.

        `output` has features [B, d] and logits [B, C]; `batch` inputs and labels; `local` the
        client, its model, what it kept, and what the server sent it (`local.down`).
        """
        return super().loss(output, batch, local) + self.hp.tax * negative_entropy(output.logits)


def negative_entropy(logits: Tensor) -> Tensor:
    """Sum of p log p over C classes, the mean over a batch [B, C]; Eq. (1)."""
    logs = logits.log_softmax(-1)
    return (logs.exp() * logs).sum(-1).mean()
