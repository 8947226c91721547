"""A CLIP with prompts in both towers, coupled by maps (MaPLe; DP2FL's task and data prompts)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedray.models.inputs import Inputs, Pixels
from fedray.models.prompted.base import PromptedClip, check_depth
from fedray.models.prompted.texts import maple_template, unit


class DualPromptClip(PromptedClip):
    """A CLIP with text prompts, and maps that turn them into vision prompts.

    MaPLe: Khattak et al., CVPR 2023, arXiv:2210.03117; DP2FL: arXiv:2504.16357. The method's
    hyper-parameters are `length`, n, the tokens of each prompt; `depth`, J, the number of blocks of
    both towers with prompts; and `words`, whose embeddings are the initial first text prompt.

    Attributes:
        task: the text prompts p_0..p_{J-1} [n, d_t], DP2FL's task prompt.
        data: the maps F_0..F_{J-1} from d_t to the vision width, DP2FL's data prompt.
    """

    reads: type[Inputs] = Pixels

    def make_prompts(self, hparams: Any) -> None:
        length, depth, text = hparams.length, hparams.depth, self.clip.text.token_width
        check_depth(depth, self.clip.text.layers, self.clip.vision.layers)
        self.template = maple_template(length)
        words = [hparams.words] + [None] * (depth - 1)
        self.task = nn.ParameterList(self.prompt(length, text, words=word) for word in words)
        self.data = nn.ModuleList(nn.Linear(text, self.clip.vision.width) for _ in range(depth))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Initialise as MaPLe: p_0 from words, deeper prompts from noise, equal deeper maps."""
        for prompt, words, _ in self._prompts:
            self.start(generator, prompt, words)
        for coupling in self.data[:2]:
            for tensor in coupling.parameters():
                bound = 1 / math.sqrt(self.clip.text.token_width)
                tensor.uniform_(-bound, bound, generator=generator)
        for deeper in self.data[2:]:
            deeper.load_state_dict(self.data[1].state_dict())

    def vision_prompts(self) -> list[Tensor]:
        """Return the prompts Pi_i = F_i(p_i), each [n, w]; DP2FL's Eq. (3)."""
        return [coupling(prompt) for coupling, prompt in zip(self.data, self.task, strict=True)]

    def text_features(self) -> Tensor:
        """Return features [K, d] of "a photo of a {class}." with the first n words replaced.

        If n > 4, further positions are inserted before the class name.
        """
        return self.class_texts(self.template).encode(self.task[0], list(self.task[1:]))

    def image_features(self, x: Inputs) -> Tensor:
        return unit(self.encode(x, self.vision_prompts()))

    def split_parameters(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return task and data prompts as vectors [t] and [p], from parameters by name."""
        task, data = (
            torch.cat([t.flatten() for name, t in tensors.items() if name.startswith(part)])
            for part in ("task.", "data.")
        )
        return task, data

    def merge_parameters(self, task: Tensor, data: Tensor) -> dict[str, Tensor]:
        """Return the named parameters of two vectors; the inverse of `split_parameters`."""
        parameters = dict(self.named_parameters())
        sizes = [parameter.numel() for parameter in parameters.values()]
        pieces = torch.split(torch.cat([task, data]), sizes)
        named = zip(parameters.items(), pieces, strict=True)
        return {name: piece.view_as(parameter) for (name, parameter), piece in named}
