"""The vision tower of a frozen CLIP, which accepts prompts."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from fedray.language.encoders.base import same_bits
from fedray.language.encoders.openclip import (
    NONE,
    Branches,
    Changes,
    run_blocks,
    with_additions,
)


class VisionTower:
    """open_clip's `VisionTransformer` with its weights, which accepts prompt tokens.

    Images in [0, 1] have each channel scaled by `mean` and standard deviation `std`.
    """

    def __init__(self, visual: Any, mean: Sequence[float], std: Sequence[float]) -> None:
        self._visual = visual
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)
        self.image_size = int(visual.image_size[0])
        self.width = int(visual.conv1.out_channels)
        self.dim = int(visual.output_dim)
        self.patches = int(visual.grid_size[0] * visual.grid_size[1])

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self._visual.transformer.resblocks)

    def embed(self, images: Tensor) -> Tensor:
        """Return the class token and patches after the first layer norm: [B, 1+M, w].

        Args:
            images: [B, channels, S, S] in [-1, 1]; grey images are repeated to three channels.
        """
        visual, pixels = self._visual, (images + 1) / 2
        normalised = (pixels.expand(-1, 3, -1, -1) - self.mean) / self.std
        patches = visual.conv1(normalised).flatten(2).mT
        token = visual.class_embedding.to(patches.dtype).expand(len(images), 1, -1)
        hidden = torch.cat([token, patches], dim=1)
        embedded: Tensor = visual.ln_pre(hidden + visual.positional_embedding.to(hidden.dtype))
        return embedded

    def encode(self, embedded: Tensor, prompts: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return image features [B, d] and patch features [B, M, d], projected, not normalised.

        Args:
            embedded: the output of `embed` [B, 1+M, w].
            prompts: tokens [B, l, w] or [l, w]. The first ones are appended after the patches,
                without position embeddings; the i-th replace them at the input of block i (MaPLe).
        """
        visual = self._visual
        with same_bits(embedded.device):
            hidden, length = self._appended(embedded, prompts)
            hidden = run_blocks(visual.transformer.resblocks, hidden, prompts[1:], -length)
            return self._pooled(hidden[:, : hidden.shape[1] - length])

    def encode_prompted(
        self,
        embedded: Tensor,
        prompts: Sequence[Tensor] = (),
        weights: Changes = NONE,
        branches: Branches = NONE,
    ) -> Tensor:
        """Return the image features [B, d] of `encode`, with additions to the tower.

        If they come from the class token, the last block is computed at that token alone, unless
        there are branches.
        """
        visual = self._visual
        if branches or visual.pool_type != "tok" or len(prompts) >= self.layers:
            whole = partial(self.encode, embedded, prompts)
            return with_additions(visual, whole, weights, branches)[0]
        at_token = partial(self._encode_class_token, embedded, prompts)
        return with_additions(visual, at_token, weights, branches)

    def _encode_class_token(self, embedded: Tensor, prompts: Sequence[Tensor]) -> Tensor:
        visual = self._visual
        *blocks, last = visual.transformer.resblocks
        with same_bits(embedded.device):
            hidden, length = self._appended(embedded, prompts)
            hidden = run_blocks(blocks, hidden, prompts[1:], -length)
            normed = last.ln_1(hidden)
            x = hidden[:, :1] + last.ls_1(last.attention(normed[:, :1], normed, normed))
            x = x + last.ls_2(last.mlp(last.ln_2(x)))
            return self._pooled(x)[0]

    def _pooled(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of `encode` from the last block's output [B, 1+M, w]."""
        visual = self._visual
        if not visual.final_ln_after_pool:
            hidden = visual.ln_post(hidden)
        patches = hidden[:, 1:]
        image = hidden[:, 0] if visual.pool_type == "tok" else patches.mean(1)
        if visual.final_ln_after_pool:
            image = visual.ln_post(image)
        return image @ visual.proj, patches @ visual.proj

    def _appended(self, embedded: Tensor, prompts: Sequence[Tensor]) -> tuple[Tensor, int]:
        """Append the first prompt after the patches [B, 1+M+l, w]; return its length, too."""
        if not prompts:
            return embedded, 0
        first = self._visual.ln_pre(prompts[0].to(embedded.dtype))
        whole = torch.cat([embedded, first.expand(len(embedded), -1, -1)], dim=1)
        return whole, prompts[0].shape[-2]

    def to(self, device: torch.device) -> Self:
        """Move the weights to a device."""
        self._visual.to(device)
        self.mean, self.std = self.mean.to(device), self.std.to(device)
        return self
