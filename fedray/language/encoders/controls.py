"""Controls without language: random or orthogonal vectors instead of text embeddings."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from fedray.base.errors import UserError
from fedray.config import Experiment, Seed
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders

DEFAULT_WIDTH = 384
"""Width of the vectors if neither `dim` nor `model.feature_dim` is set."""


class ControlEncoder(TextEncoder):
    """An encoder whose vectors differ between distinct texts but carry no meaning.

    Args:
        choice: name, width and seed; makes the vectors.
    """

    def __init__(self, choice: ControlChoice) -> None:
        self.dim, self.identity, self._choice = choice.width(), choice.identity(), choice

    def features(self, texts: Sequence[str]) -> Tensor:
        order = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        rows = self._choice.vectors(list(order))
        return torch.index_select(rows, 0, torch.tensor([order[text] for text in texts]))


class ControlChoice(EncoderChoice):
    """Base of the controls, which need neither weights nor a cache."""

    cached = False

    dim: int | None = Field(None, ge=2, le=8192)
    """Width of the vectors; None: model.feature_dim, or 384 if that is not set."""
    seed: Seed = 0
    """Seed of the vectors."""
    per: Literal["text", "class"] = "text"
    """text: every distinct text has a vector, and a class the mean over its texts; class: every
    class has one vector for any `text.style`, as in FedGLCL's Table 10."""

    def following(self, experiment: Experiment) -> Self:
        """Return the parameters with the width of the features, unless a width is set."""
        width = experiment.model.feature_dim if self.dim is None else self.dim
        return self.model_copy(update={"dim": width})

    @abstractmethod
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return vectors [U, d] for U distinct texts."""

    @property
    def per_class(self) -> bool:
        return self.per == "class"

    def width(self) -> int:
        return DEFAULT_WIDTH if self.dim is None else self.dim

    def identity(self) -> str:
        return f"{self.name}:{self.width()}:{self.seed}"

    def build(self) -> ControlEncoder:
        return ControlEncoder(self)


@encoders.add
class RandomChoice(ControlChoice):
    """Random directions, one for each text: a control without language."""

    name = "random"

    distribution: Literal["normal", "uniform"] = "normal"
    """normal: nearly orthogonal directions; uniform: positive numbers (`torch.rand`), with a mean
    cosine of 3/4 between vectors. FedGLCL does not say which it uses."""

    def identity(self) -> str:
        uniform = self.distribution == "uniform"
        return super().identity() + (":uniform" if uniform else "")

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return random vectors [U, d] that depend on the seed and each text alone.

        Each number is drawn from N(0, 1/d), or from U(0, sqrt(3/d)), so that squared lengths are 1
        on average.
        """
        drawn, uniform = [], self.distribution == "uniform"
        for text in texts:
            key = f"{self.seed}/{text}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
            generator, draw = torch.Generator().manual_seed(seed), torch.randn
            if uniform:
                draw = torch.rand
            numbers = draw(self.width(), generator=generator)
            drawn.append(numbers * (math.sqrt(3) if uniform else 1))
        return torch.stack(drawn) / math.sqrt(self.width())


@encoders.add
class OrthogonalChoice(ControlChoice):
    """Orthonormal directions, one for each text: a control without language."""

    name = "orthogonal"

    def check(self, texts: Sequence[str]) -> None:
        number = len(dict.fromkeys(texts))
        if number > self.width():
            raise UserError(
                f"text.encoder=orthogonal has {self.width()} directions for {number} texts; set "
                f"text.encoder.dim={number} (and model.feature_dim) or text.style=handcrafted, or "
                "text.encoder.per=class for one direction per class"
            )

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return orthonormal vectors [U, d] drawn from the seed, in the order of distinct texts."""
        self.check(texts)
        generator = torch.Generator().manual_seed(self.seed)
        gaussian = torch.randn(len(texts), self.width(), generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian.T)
        rows: Tensor = (q * r.diagonal().sign()).T  # makes the signs independent of the solver
        return rows.float()
