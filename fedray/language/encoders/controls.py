"""Controls without language: what is left of a method when its texts mean nothing."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedray.config import Frozen, Seed
from fedray.errors import UserError
from fedray.language.encoders.base import EncoderChoice, TokenlessEncoder, encoders


class ControlParams(Frozen):
    """Width and seed of vectors without language."""

    dim: int = Field(384, ge=2, le=8192)
    """Width of the vectors."""
    seed: Seed = 0
    """What the numbers are drawn from."""


class ControlEncoder(TokenlessEncoder):
    """Vectors that differ between texts and carry none of their meaning; equal for equal texts.

    Args:
        choice: name, width and seed.
    """

    def __init__(self, choice: EncoderChoice[ControlParams]) -> None:
        super().__init__(choice.name)
        self.dim = choice.params.dim
        self.seed = choice.params.seed
        self.identity = choice.identity()

    def features(self, texts: Sequence[str]) -> Tensor:
        """Vectors [T, d] for texts.

        Raises:
            UserError: when there are more distinct texts than vectors.
        """
        order = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = self._vectors(list(order))
        chosen = torch.tensor([order[text] for text in texts])
        return torch.index_select(rows, 0, chosen).to(self._device)

    @abstractmethod
    def _vectors(self, texts: Sequence[str]) -> Tensor:
        """Vectors [U, d] for U distinct texts."""


class RandomEncoder(ControlEncoder):
    """Each distinct text has its own Gaussian direction, drawn from the seed and the text.

    Each number is from N(0, 1/d).
    """

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        drawn = []
        for text in texts:
            seed = hashlib.blake2b(f"{self.seed}/{text}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
            drawn.append(torch.randn(self.dim, generator=generator))
        return torch.stack(drawn) / math.sqrt(self.dim)


class OrthogonalEncoder(ControlEncoder):
    """The i-th distinct text has the i-th of orthonormal rows, which the seed fixes."""

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        number = len(texts)
        if number > self.dim:
            raise UserError(
                f"text.encoder=orthogonal has {self.dim} directions for {number} texts; set "
                f"text.encoder.dim={number} (and model.feature_dim) or text.style=handcrafted"
            )
        generator = torch.Generator().manual_seed(self.seed)
        gaussian = torch.randn(number, self.dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian.T)
        rows: Tensor = (q * r.diagonal().sign()).T  # signs as of the Gaussian, whatever the solver
        return rows.float()


class ControlChoice(EncoderChoice[ControlParams]):
    """What the controls have in common: there is nothing to load, and nothing worth a cache."""

    Params = ControlParams
    paper = "-"
    promptable = False
    cached = False

    def identity(self) -> str:
        """Names the control, its width and its seed."""
        return f"{self.name}:{self.params.dim}:{self.params.seed}"


@encoders.add
class RandomChoice(ControlChoice):
    """A random direction for each text: a control without language."""

    name = "random"

    def build(self) -> RandomEncoder:
        """The encoder."""
        return RandomEncoder(self)


@encoders.add
class OrthogonalChoice(ControlChoice):
    """Orthonormal directions, one for each text: a control without language."""

    name = "orthogonal"

    def build(self) -> OrthogonalEncoder:
        """The encoder."""
        return OrthogonalEncoder(self)
