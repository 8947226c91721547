"""The class of architectures (image backbones) and its registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from fedray.registry import Registry

ConvRule = Literal["uniform", "fan_out"]
"""Initial weights of convolutions: PyTorch's default, or He normal by fan-out."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A backbone that can be chosen by name.

    Attributes:
        name: the name in `model.group`.
        summary: a one-line description.
        make: builds the network for (channels, image_size in pixels); the network maps
            `[B, channels, H, W]` to `[B, raw]`.
        raw: width of the output; None if it has to be found by a forward pass.
        paper: the source; "-" for fedray's networks.
        min_image_size: smallest side of a square image, in pixels, for which no map is empty.
        conv_rule: the initial distribution of convolutions.
        channels_last: whether training on a CPU is faster with channels last in memory (true for
            small and wide maps, not for deep residual networks at 32 pixels).
        keeps_init: whether the constructors draw the initial weights, under a seed of the run.
            Otherwise `fedray.models.init` draws them by rules for the layers of fedray's networks.
        dense: whether the output is a vector per pixel, `[B·H·W, raw]`.
        reference: torchvision's name of the network whose tensors have the same names here; "" if
            there is none.
        within: the part of that network that this one is, with a dot: "features."; "" for all.
        own: prefixes of tensors that have the name of one of torchvision's, but another size.
        projector: pairs of prefixes, in the projector and in torchvision's network, of hidden
            layers that form the projector; they are loaded if the widths are equal.
        version: the version of the code; raised by a commit that changes its numbers.
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
    reference: str = ""
    within: str = ""
    own: tuple[str, ...] = ()
    projector: tuple[tuple[str, str], ...] = ()
    version: int = 1


architectures: Registry[Architecture] = Registry("architecture", "fedray.models.backbones")
"""All backbones by name."""

Make = Callable[[int, int], nn.Module]


def architecture(name: str, *, paper: str = "-", min_image_size: int = 1) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as an architecture.

    The function gets the number of channels and the side of images in pixels, and returns any
    `nn.Module` that maps images `[B, channels, H, W]` in [-1, 1] to features `[B, n]`. A projector,
    or an adapter if `model.feature_dim` is not n, and the head follow the module. The constructors
    draw the initial weights, under a seed of the run.

    Args:
        name: the name in `model.group`.
        paper: the source.
        min_image_size: smallest side of a square image, in pixels.
    """
    return backbone(name, raw=None, paper=paper, min_image_size=min_image_size, keeps_init=True)


def backbone(name: str, **fields: Any) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as an architecture.

    The first line of its docstring is the summary.

    Args:
        name: the name in `model.group`.
        fields: further attributes of `Architecture`.
    """

    def add(make: Make) -> Make:
        summary = (inspect.getdoc(make) or name).split("\n")[0].rstrip(".")
        architectures.add(Architecture(name=name, summary=summary, make=make, **fields))
        return make

    return add
