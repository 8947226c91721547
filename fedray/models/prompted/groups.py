"""A CLIP with several groups of text and visual prompts and a combined prediction (FedMGP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedray.models.classifier import ClassifierOutput
from fedray.models.clip.frozen import FrozenClip
from fedray.models.inputs import Inputs, Pixels, values_of
from fedray.models.prompted.base import PromptedClip, scaled_products
from fedray.models.prompted.context import INIT_STD
from fedray.models.prompted.texts import PHOTO, placeholders, unit, word_embeddings

Inference = Literal["logits", "prob", "max_logits", "features", "group"]

WORDS = "a photo of a"
WORD_STD = 0.01
"""Standard deviation of the noise added to initial words (official code)."""


class Groups(NamedTuple):
    """Unit features and logits of each group.

    Attributes:
        image: [G, B, d], or [1, B, d] without visual prompts.
        text: [G, K, d], or [1, K, d] without text prompts.
        logits: [G, B, K].
    """

    image: Tensor
    text: Tensor
    logits: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class GroupedOutput(ClassifierOutput):
    """The groups' mean image features [B, d] and combined prediction [B, K].

    Attributes:
        groups: features and logits of each group.
    """

    groups: Groups


class GroupedClip(PromptedClip):
    """A CLIP with G groups of text prompts [G, l_t, d_t] and visual prompts [G, l_v, d_v].

    Prompts enter at the inputs of the towers. Bo et al., NeurIPS 2025, arXiv:2511.00480.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        groups: G.
        text_length: l_t; 0 for no text prompts.
        visual_length: l_v; 0 for no visual prompts; the model then reads `ImageFeatures`.
        inference: how the groups' predictions are combined, see `combine`.
        answering_group: the group that predicts if `inference` is "group".
    """

    length_key = "algorithm.text_length"

    def __init__(
        self,
        clip: FrozenClip,
        names: Sequence[str],
        *,
        groups: int,
        text_length: int,
        visual_length: int,
        inference: Inference = "logits",
        answering_group: int = 0,
    ) -> None:
        super().__init__(clip, names)
        self.num_groups = groups
        self.text_length = text_length
        self.visual_length = visual_length
        self.inference = inference
        self.answering_group = answering_group
        self.template = PHOTO if text_length <= 4 else placeholders(text_length)
        if text_length:
            self.text = nn.Parameter(torch.zeros(groups, text_length, clip.text.token_width))
        if visual_length:
            self.visual = nn.Parameter(torch.zeros(groups, visual_length, clip.vision.width))
            self.reads = Pixels

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw text prompts of up to four tokens as words plus noise, all others as noise."""
        length = self.text_length
        if 0 < length <= 4:
            self.text.normal_(0.0, WORD_STD, generator=generator)
            self.text.add_(word_embeddings(self.clip.text, WORDS, length))
        elif length:
            self.text.normal_(0.0, INIT_STD, generator=generator)
        if self.visual_length:
            self.visual.normal_(0.0, INIT_STD, generator=generator)

    def text_features(self) -> Tensor:
        """Return text features g_{k,j} of the classes in scope, from one batch: [G, K, d]."""
        texts = self.class_texts(self.template)
        return texts.encode(self.text) if self.text_length else texts.encode().unsqueeze(0)

    def image_features(self, x: Inputs) -> Tensor:
        """Return image features f_j [G, B, d]; patch embeddings are shared by all groups."""
        if not self.visual_length:
            return super().image_features(x).unsqueeze(0)
        vision, pixels = self.clip.vision, values_of(x, Pixels)
        with torch.no_grad():
            embedded = vision.embed(pixels)
        if not torch.is_grad_enabled():  # large batches: one group at a time
            features = torch.stack([vision.encode_prompted(embedded, [p]) for p in self.visual])
        else:
            prompts = self.visual.repeat_interleave(len(pixels), dim=0)
            whole = embedded.repeat(self.num_groups, 1, 1)
            features = vision.encode_prompted(whole, [prompts])
            features = features.reshape(self.num_groups, len(pixels), -1)
        return unit(features)

    def groups(self, x: Inputs) -> Groups:
        """Return the features and logits of every group, Eq. (2)."""
        image, text = self.image_features(x), self.texts()
        return Groups(image, text, scaled_products(image, text, self.clip.scale))

    def forward(self, x: Inputs) -> GroupedOutput:
        """Return the combined prediction, and the predictions of all groups."""
        groups = self.groups(x)
        answer = combine(groups, self.inference, self.answering_group, self.clip.scale)
        return GroupedOutput(groups.image.mean(0), answer, groups)


def combine(groups: Groups, how: Inference, group: int, scale: float) -> Tensor:
    """Return the groups' combined logits [B, K] (Table 15).

    Args:
        groups: features and logits of each group.
        how: logits: mean of the logits (official code); prob: logarithm of the mean probabilities
            of Eq. (6); max_logits: the group with the largest logit; features: logits of averaged
            features; group: logits of one group.
        group: the group to use if `how` is "group".
        scale: exp(logit_scale).
    """
    if how == "logits":
        return groups.logits.mean(0)
    if how == "prob":
        return groups.logits.softmax(-1).mean(0).log()
    if how == "features":
        return scale * scaled_products(groups.image.mean(0), groups.text.mean(0), 1.0)
    if how == "group":
        return groups.logits[group]
    surest = groups.logits.amax(-1).argmax(0)  # [B]
    return groups.logits[surest, torch.arange(len(surest), device=surest.device)]
