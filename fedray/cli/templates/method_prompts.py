"""NewMethod: a shared prompt around a frozen CLIP, mixed with the plain texts on each client.

fedray run promptfl_clip --plugin new_method.py algorithm=new_method
"""

import torch

from fedray.plugin import ContextClip, PromptAveraging, method


class MixedClip(ContextClip):  # inherits `context` [m, d_t], the vectors before the class names
    def make_prompts(self, hparams):
        super().make_prompts(hparams)
        self.mix = torch.nn.Parameter(torch.zeros(()))  # a parameter of one's own

    def text_features(self):  # [K, d], Eq. (1): a g(p, k) + (1 - a) g(k)
        a = self.mix.sigmoid()
        mixed = a * super().text_features() + (1 - a) * self.fixed_texts()
        return torch.nn.functional.normalize(mixed, dim=-1)


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(PromptAveraging):
    """FedAvg of a context; each client keeps its own mixture with the plain texts."""

    clip_model = MixedClip
    length: int = 4  # m, a hyper-parameter: the key `algorithm.length`

    def shared(self, model):
        return {"context"}  # averaged; the other parameters stay on the client
