"""Controls without language: what is left of a method when its texts mean nothing."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Literal, Self, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fedray.config import Experiment, Frozen, Seed
from fedray.errors import UserError
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders

OUTSIDE = 384
"""Width of the vectors where nothing says it."""


class ControlParams(Frozen):
    """Width and seed of vectors without language."""

    dim: int | None = Field(None, ge=2, le=8192)
    """Width of the vectors; None: model.feature_dim, or 384 if that is not set."""
    seed: Seed = 0
    """What the numbers are drawn from."""
    per: Literal["text", "class"] = "text"
    """text: every distinct text has its vector, and a class the mean of its texts'; class: every
    class has one, for every `text.style`, as in FedGLCL's Table 10."""

    def following(self, experiment: Experiment) -> Self:
        """Return the parameters as wide as the features, unless a width is set."""
        width = experiment.model.feature_dim if self.dim is None else self.dim
        return self.model_copy(update={"dim": width})


class RandomParams(ControlParams):
    """Width, seed and distribution of random vectors."""

    distribution: Literal["normal", "uniform"] = "normal"
    """normal: directions that are nearly orthogonal; uniform: positive numbers (`torch.rand`),
    whose vectors have a mean cosine of 3/4. FedGLCL does not say which it draws."""


P = TypeVar("P", bound=ControlParams)


class ControlEncoder(TextEncoder, Generic[P]):
    """Vectors that differ between texts and carry none of their meaning; equal for equal texts.

    Args:
        choice: name, width and seed.
    """

    def __init__(self, choice: ControlChoice[P]) -> None:
        self.params = choice.params
        self.dim = choice.width()
        self.seed = choice.params.seed
        self.identity = choice.identity()

    def features(self, texts: Sequence[str]) -> Tensor:
        order = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = self._vectors(list(order))
        chosen = torch.tensor([order[text] for text in texts])
        return torch.index_select(rows, 0, chosen)

    @abstractmethod
    def _vectors(self, texts: Sequence[str]) -> Tensor:
        """Return vectors [U, d] for U distinct texts."""


class RandomEncoder(ControlEncoder[RandomParams]):
    """Each distinct text has its own random vector, drawn from the seed and the text.

    Each number is from N(0, 1/d), or from U(0, sqrt(3/d)): squared lengths are 1 in the mean.
    """

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        drawn = []
        for text in texts:
            seed = hashlib.blake2b(f"{self.seed}/{text}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
            uniform = self.params.distribution == "uniform"
            draw = torch.rand if uniform else torch.randn
            drawn.append(draw(self.dim, generator=generator) * (math.sqrt(3) if uniform else 1))
        return torch.stack(drawn) / math.sqrt(self.dim)


class OrthogonalEncoder(ControlEncoder[ControlParams]):
    """The i-th distinct text has the i-th of orthonormal rows, which the seed fixes."""

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        number = len(texts)
        check_directions(self.dim, number)
        generator = torch.Generator().manual_seed(self.seed)
        gaussian = torch.randn(number, self.dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian.T)
        rows: Tensor = (q * r.diagonal().sign()).T  # signs as of the Gaussian, whatever the solver
        return rows.float()


def check_directions(dim: int, texts: int) -> None:
    """Raise a UserError, with the keys to set, for more texts than orthogonal directions."""
    if texts > dim:
        raise UserError(
            f"text.encoder=orthogonal has {dim} directions for {texts} texts; set "
            f"text.encoder.dim={texts} (and model.feature_dim) or text.style=handcrafted, or "
            "text.encoder.per=class for one direction a class"
        )


class ControlChoice(EncoderChoice[P]):
    """What the controls have in common: there is nothing to load, and nothing worth a cache."""

    paper = "-"
    cached = False

    @property
    def per_class(self) -> bool:
        return self.params.per == "class"

    def width(self) -> int:
        return OUTSIDE if self.params.dim is None else self.params.dim

    def identity(self) -> str:
        """Name the control, its width and its seed."""
        return f"{self.name}:{self.width()}:{self.params.seed}"


@encoders.add
class RandomChoice(ControlChoice[RandomParams]):
    """A random direction for each text: a control without language."""

    name = "random"
    Params = RandomParams

    def identity(self) -> str:
        """Name the distribution, too, unless it is normal."""
        uniform = self.params.distribution == "uniform"
        return super().identity() + (":uniform" if uniform else "")

    def build(self) -> RandomEncoder:
        return RandomEncoder(self)


@encoders.add
class OrthogonalChoice(ControlChoice[ControlParams]):
    """Orthonormal directions, one for each text: a control without language."""

    name = "orthogonal"
    Params = ControlParams

    def check(self, texts: Sequence[str]) -> None:
        check_directions(self.width(), len(dict.fromkeys(texts)))

    def build(self) -> OrthogonalEncoder:
        return OrthogonalEncoder(self)
