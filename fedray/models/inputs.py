"""What a model may be given: one type for each kind of input.

Pixels and what a frozen vision tower makes of them are all tensors, but a model that expects the
one cannot use the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from fedray.counts import note_images


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """A batch of B inputs of one kind.

    Attributes:
        values: `[B, ...]`, float.
    """

    values: Tensor

    @classmethod
    def of(cls, stored: Tensor) -> Self:
        """Make inputs of a slice of a stored array, here float already."""
        return cls(stored)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Pixels(_Values):
    """Images `[B, channels, H, W]` in [-1, 1]."""

    @classmethod
    def of(cls, stored: Tensor) -> Self:
        """Map uint8 to float32 in [-1, 1], as ToTensor and Normalize(0.5, 0.5) do.

        Floats are in [-1, 1] already and are not changed.
        """
        if stored.is_floating_point():
            return cls(stored)
        return cls(stored.float().mul_(2 / 255).sub_(1))


@dataclass(frozen=True, slots=True, eq=False)
class PatchEmbeddings(_Values):
    """Class token and M patches before the first block of a vision tower, `[B, 1+M, w]`."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchFeatures(_Values):
    """Features of M patches under a frozen vision tower `[B, M, d]`, not normalised."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFeatures(_Values):
    """Features of images under frozen encoders `[B, d]`, not normalised."""


Inputs = Pixels | PatchEmbeddings | PatchFeatures | ImageFeatures


def values_of(x: Inputs, *kinds: type[Inputs]) -> Tensor:
    """Return the values of an input of one of some kinds, for a model's forward pass.

    Raises:
        TypeError: when it is of another, or a bare tensor.
    """
    if not isinstance(x, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        found: Any = type(x)
        raise TypeError(f"this model reads {wanted}, found {found.__name__}")
    note_images(len(x))
    return x.values
