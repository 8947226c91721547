"""Types of model inputs: pixels and frozen features.

All inputs are tensors; the types prevent passing one kind to a model that expects another.
"""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from fedray.base.counts import note_images


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """A batch of B inputs of one kind, `values` [B, ...], float."""

    values: Tensor

    @classmethod
    def of(cls, stored: Tensor) -> Self:
        """Convert a slice of a stored array to inputs; the array holds floats already."""
        return cls(stored)

    def __len__(self) -> int:
        return self.values.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Pixels(_Values):
    """Images `[B, channels, H, W]` in [-1, 1]."""

    @classmethod
    def of(cls, stored: Tensor) -> Self:
        """Convert uint8 to float32 in [-1, 1], as ToTensor and Normalize(0.5, 0.5) do.

        Floats are expected in [-1, 1] and are not changed.
        """
        if stored.dtype.is_floating_point:
            return cls(stored)
        return cls(stored.float().mul_(2 / 255).sub_(1))


@dataclass(frozen=True, slots=True, eq=False)
class PatchFeatures(_Values):
    """Features of M patches from a frozen vision tower `[B, M, d]`, not normalised."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFeatures(_Values):
    """Features of images from a frozen encoder `[B, d]`, not normalised."""


Inputs = Pixels | PatchFeatures | ImageFeatures


def values_of(x: Inputs, *kinds: type[Inputs]) -> Tensor:
    """Return the values of an input, and count its images as read; TypeError for other types."""
    if not isinstance(x, kinds):
        accepted = " or ".join(kind.__name__ for kind in kinds)
        actual: Any = type(x)
        raise TypeError(f"this model reads {accepted}, found {actual.__name__}")
    note_images(x.values.shape[0])  # faster than `len`, which runs Python
    return x.values
