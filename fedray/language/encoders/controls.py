"""Controls without language: what is left of a method when its texts mean nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedray.errors import UserError
from fedray.language.encoders.base import TokenlessEncoder
from fedray.language.encoders.spec import EncoderSpec

DIM = 384


def identity(spec: EncoderSpec) -> str:
    """Names the control, its width and its seed."""
    return f"{spec.name}:{spec.dim or DIM}:{spec.seed}"


class ControlEncoder(TokenlessEncoder):
    """Vectors that tell texts apart and carry none of their meaning.

    random: each distinct text has its own Gaussian direction, N(0, 1/d) per number, drawn from
    the seed and the text. orthogonal: the i-th distinct text has the i-th of a fixed sequence of
    orthonormal rows. Equal texts have equal vectors.

    Args:
        spec: name, dim and seed.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(spec.name)
        self.spec = spec
        self.dim = spec.dim or DIM
        self.identity = identity(spec)

    def features(self, texts: Sequence[str]) -> Tensor:
        """Vectors [T, d] for texts.

        Raises:
            UserError: for orthogonal, when there are more distinct texts than dimensions.
        """
        order = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = self._random(list(order)) if self.spec.name == "random" else self._rows(len(order))
        chosen = torch.tensor([order[text] for text in texts])
        return torch.index_select(rows, 0, chosen).to(self._device)

    def _random(self, texts: Sequence[str]) -> Tensor:
        drawn = []
        for text in texts:
            seed = hashlib.blake2b(f"{self.spec.seed}/{text}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
            drawn.append(torch.randn(self.dim, generator=generator))
        return torch.stack(drawn) / math.sqrt(self.dim)

    def _rows(self, number: int) -> Tensor:
        if number > self.dim:
            raise UserError(
                f"text.encoder=orthogonal has {self.dim} directions for {number} texts; set "
                f"text.encoder.dim={number} (and model.feature_dim) or text.style=handcrafted"
            )
        generator = torch.Generator().manual_seed(self.spec.seed)
        gaussian = torch.randn(number, self.dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian.T)
        rows: Tensor = (q * r.diagonal().sign()).T  # signs as of the Gaussian, whatever the solver
        return rows.float()
