# fedray run fedglcl_digits --plugin new_method.py algorithm=new_method
"""NewMethod: federated averaging whose image features are guided by the classes' texts."""

import torch.nn.functional as F

from fedray.plugin import FedAvg, LossWeight, Requires, gift, method, sent


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(FedAvg):
    """FedAvg whose image features are guided by the classes' texts."""

    requires = Requires(text=True)  # the server then has the texts, `server.tower`
    keep_text = gift(text=sent("text_embeddings", "the classes' names", "C d"))
    lambda_: LossWeight = 1.0  # a hyper-parameter: the key `algorithm.lambda`
    """λ, weight of the guidance; 0 gives FedAvg."""

    def init_server(self, server):
        text = server.tower.frozen_prototypes(of_unit_length=True)  # T [C, d]
        server.check_width(text)
        return {**super().init_server(server), "text": text}

    def loss(self, output, batch, local):  # Eq. (1): -log softmax_y(cos(f, T_j) / 0.1)
        cosines = F.normalize(output.features, dim=1) @ local.state.memory["text"].T
        guidance = F.cross_entropy(cosines / 0.1, batch.labels)
        return super().loss(output, batch, local) + self.lambda_ * guidance
