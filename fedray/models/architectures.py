"""The class of architectures (image backbones) and its registry."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from fedray.config.registry import Registry

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
        raw: width of the output, and `fedray.models.init` draws the initial weights by rules for
            the layers of fedray's networks. None: the width is found by a forward pass, and the
            constructors draw the weights, under a seed of the run.
        paper: the source; "-" for fedray's networks.
        min_image_size: smallest side of a square image, in pixels, for which no map is empty.
        conv_rule: the initial distribution of convolutions.
        channels_last: whether training on a CPU is faster with channels last in memory (true for
            small and wide maps, not for deep residual networks at 32 pixels).
        dense: whether the output is a vector per pixel, `[B·H·W, raw]`.
        reference: torchvision's name of the network whose weights it can start from; "" for none.
        shares: prefixes of names in the extractor, and of the same tensors in that network; hidden
            layers of the projector are shared if they are as wide.
        version: the version of the code; raised by a commit that changes its numbers.
    """

    name: str
    summary: str
    make: Callable[[int, int], nn.Module]
    raw: int | None = None
    paper: str = "-"
    min_image_size: int = 1
    conv_rule: ConvRule = "uniform"
    channels_last: bool = False
    dense: bool = False
    reference: str = ""
    shares: Mapping[str, str] = field(default_factory=dict)
    version: int = 1


architectures: Registry[Architecture] = Registry("architecture", "fedray.models.backbones")
"""All backbones by name."""

Make = Callable[[int, int], nn.Module]


def architecture(
    name: str, *, paper: str = "-", min_image_size: int = 1, **further: Any
) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as an architecture.

    The function gets the number of channels and the side of images in pixels, and returns any
    `nn.Module` that maps images `[B, channels, H, W]` in [-1, 1] to features `[B, n]`. A projector,
    or an adapter if `model.feature_dim` is not n, and the head follow the module. The first line of
    the docstring is the summary.

    Arguments are attributes of `Architecture`; `further` ones are for fedray's own networks.
    """

    def add(make: Make) -> Make:
        summary = (inspect.getdoc(make) or name).split("\n")[0].rstrip(".")
        known: dict[str, Any] = {"name": name, "paper": paper, "min_image_size": min_image_size}
        architectures.add(Architecture(summary=summary, make=make, **known, **further))
        return make

    return add
