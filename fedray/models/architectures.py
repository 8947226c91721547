"""What an architecture is, and the registry of them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fedray.registry import Registry

ConvRule = Literal["uniform", "fan_out"]
"""Initial weights of convolutions: PyTorch's default, or He's normal by fan-out."""


@dataclass(frozen=True)
class PretrainedLayout:
    """How a backbone's tensors and those of a torchvision network correspond.

    Tensors without a prefix that is named here correspond one to one, in the order of the layers.

    Attributes:
        reference: what torchvision calls the network.
        backbone_only: prefixes of the backbone's tensors that have no counterpart.
        reference_only: prefixes of torchvision's tensors that have none.
        projector: (prefix in the projector, prefix in torchvision's network) of hidden layers that
            are the projector here; they are loaded where the widths are torchvision's.
    """

    reference: str
    backbone_only: tuple[str, ...] = ()
    reference_only: tuple[str, ...] = ("fc.", "classifier.")
    projector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A backbone that can be chosen by name.

    Attributes:
        name: what an experiment calls it.
        summary: one line about it.
        make: (channels, image_size in pixels) to the network, `[B, channels, H, W]` to `[B, raw]`.
        raw: width of the flat vector it gives; None where it is found by giving it an image.
        paper: where it comes from; "-" for fedray's networks.
        min_image_size: smallest side of a square image, in pixels, that leaves no map empty.
        conv_rule: the initial distribution of its convolutions.
        channels_last: whether it is trained faster on a CPU with channels last in memory (small
            and wide maps are; deep residual nets at 32 pixels are not).
        keeps_init: whether its initial weights are those that its constructors draw, under a
            seed of the run; otherwise they are drawn by the rules of `fedray.models.init`, which
            know the layers of fedray's own networks alone.
        dense: whether it gives a vector for every pixel, `[B·H·W, raw]`.
        pretrained_layout: how it corresponds to a network of torchvision; None where it does not.
    """

    name: str
    summary: str
    make: Callable[[int, int], nn.Module]
    raw: int | None
    paper: str = "-"
    min_image_size: int = 1
    conv_rule: ConvRule = "uniform"
    channels_last: bool = False
    keeps_init: bool = False
    dense: bool = False
    pretrained_layout: PretrainedLayout | None = None


architectures: Registry[Architecture] = Registry("architecture", "fedray.models.backbones")
"""Every backbone by its name."""

Make = Callable[[int, int], nn.Module]


def architecture(name: str, *, paper: str = "-", min_image_size: int = 1) -> Callable[[Make], Make]:
    """Register a function that makes any `nn.Module` as an architecture; a decorator.

    The function gets the images' channels and their side in pixels, and gives a module that maps
    images `[B, channels, H, W]` in [-1, 1] to features, one vector `[B, n]` an image. The head
    comes after it, and before that a projector, or an adapter where `model.feature_dim` is not n.
    Initial weights are those that the constructors draw, under a seed of the run.

    Args:
        name: what `model.group` calls it.
        paper: where it comes from.
        min_image_size: smallest side of a square image, in pixels.
    """

    def add(make: Make) -> Make:
        summary = (inspect.getdoc(make) or name).split("\n")[0].rstrip(".")
        architectures.add(
            Architecture(
                name=name,
                summary=summary,
                make=make,
                raw=None,
                paper=paper,
                min_image_size=min_image_size,
                keeps_init=True,
            )
        )
        return make

    return add
