# fedray run fedavg_digits --plugin new_method.py algorithm=new_method
"""NewMethod: federated averaging with a penalty on confident predictions."""

from fedray.plugin import FedAvg, LossWeight, method


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(FedAvg):
    """FedAvg with a penalty on confident predictions."""

    tax: LossWeight = 0.1  # a hyper-parameter: the key `algorithm.tax`
    """Weight of the negative entropy; 0 gives FedAvg."""

    def loss(self, output, batch, local):
        return super().loss(output, batch, local) + self.tax * negative_entropy(output.logits)


def negative_entropy(logits):  # Eq. (1), the mean of sum_c p_c log p_c over logits [B, C]
    logs = logits.log_softmax(-1)
    return (logs.exp() * logs).sum(-1).mean()
