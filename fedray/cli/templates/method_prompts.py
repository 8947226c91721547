# fedray run promptfl_clip --plugin new_method.py algorithm=new_method
"""NewMethod: a shared prompt around a frozen CLIP, mixed with the plain texts."""

import torch

from fedray.plugin import ContextClip, PromptAveraging, method


class MixedClip(ContextClip):  # inherits `context` [m, d_t], the vectors before the class names
    def make_prompts(self, hparams):
        super().make_prompts(hparams)
        self.mix = torch.nn.Parameter(torch.zeros(()))  # all parameters are trained and averaged

    def text_features(self):  # [K, d], Eq. (1): (1 - a) g(k) + a g(p, k)
        mixed = torch.lerp(self.fixed_texts(), super().text_features(), self.mix.sigmoid())
        return torch.nn.functional.normalize(mixed, dim=-1)


@method("new_method", "NewMethod", "-")  # "-", or "Doe et al., CVPR 2027, arXiv:2701.00001"
class NewMethod(PromptAveraging):
    """FedAvg of a context, and of its mixture with the plain texts."""

    clip_model = MixedClip
    length: int = 4  # a hyper-parameter: the key `algorithm.length`
    """m, number of vectors of the context."""
