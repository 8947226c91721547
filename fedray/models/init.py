"""Build classifiers whose weights depend on a given random generator alone.

torch's global generator is not changed.
"""

from copy import deepcopy
from itertools import chain
from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedray.base.errors import UserError, named, plugin_line
from fedray.base.streams import torch_seeded
from fedray.models.architectures import ConvRule, architectures
from fedray.models.classifier import BackboneClassifier, Classifier
from fedray.models.structure import saved_buffers

CPU = torch.device("cpu")


def build(
    architecture: str,
    *,
    channels: int,
    image_size: int,
    num_classes: int,
    feature_dim: int,
    hidden: int | None = None,
    imagenet: bool = False,
    generator: torch.Generator | None = None,
) -> Classifier:
    """Build a classifier on the CPU, in training mode, and draw its weights from `generator`.

    Args:
        architecture: the name of a registered architecture.
        channels: channels of the images, 1 or 3.
        image_size: side of the square images, in pixels.
        num_classes: see `BackboneClassifier`, as `feature_dim`, `hidden` and `imagenet`.
        feature_dim: d.
        hidden: width between the projector's two layers.
        imagenet: whether weights are pre-trained.
        generator: CPU generator, advanced by the call; None: all weights are 0, to load states.

    Raises:
        UserError: if the architecture is unknown, or images are too small for it.
    """
    spec = architectures.get(architecture)
    if image_size < spec.min_image_size:
        raise UserError(
            f"{spec.name}: images of {image_size}x{image_size} pixels are too small, it needs "
            f"at least {spec.min_image_size}x{spec.min_image_size}; raise data.image_size or "
            f"choose another model.group."
        )
    is_drawn = generator is not None and spec.raw is None  # by the network's constructors
    seed = int(torch.randint(2**62, (), generator=generator)) if is_drawn else 0
    with torch_seeded(seed, CPU), CPU:
        backbone, raw = spec.make(channels, image_size), spec.raw
        if raw is None:
            raw = width_of(spec.name, backbone, channels, image_size)
        module = BackboneClassifier(
            backbone.train(),
            raw,
            feature_dim,
            num_classes,
            hidden=hidden,
            channels_last=spec.channels_last,
            imagenet=imagenet,
            dense=spec.dense,
        )
    if generator is not None:
        drawn = backbone if is_drawn else None
        initialise(module, generator, conv_rule=spec.conv_rule, drawn=drawn)
        return module
    with torch.no_grad():
        for tensor in chain(module.parameters(), saved_buffers(module).values()):
            tensor.zero_()
    return module


def own_width(architecture: str, *, channels: int, image_size: int) -> int:
    """Return the output width of an architecture's backbone; arguments as for `build`.

    Raises:
        UserError: if the architecture is unknown, or does not accept such images.
    """
    spec = architectures.get(architecture)
    if spec.raw is not None:
        return spec.raw
    with torch.random.fork_rng(devices=[]), CPU:
        return width_of(spec.name, spec.make(channels, image_size), channels, image_size)


def initialise(
    module: nn.Module,
    generator: torch.Generator,
    *,
    conv_rule: ConvRule = "uniform",
    drawn: nn.Module | None = None,
    strict: bool = True,
) -> None:
    """Set every parameter and buffer of `module` in place, in the order of its submodules.

    Linear: PyTorch's default, weights Kaiming-uniform with a = sqrt(5), biases uniform within
    1/sqrt(fan_in). Conv2d: the same, or with `conv_rule="fan_out"` weights Kaiming-normal by
    fan-out for ReLU. Batch norm: weight 1, bias 0, mean 0, variance 1, no batches. Embedding:
    standard normal. The part `drawn` keeps its values.

    Raises:
        TypeError: if `strict` and a submodule holds tensors that no rule covers; else these keep
            their values.
    """
    for name, layer in module.named_modules(memo=set(() if drawn is None else drawn.modules())):
        kind, part = type(layer), cast(Any, layer)  # a subclass may hold further tensors
        if kind in (nn.BatchNorm1d, nn.BatchNorm2d):
            part.reset_parameters()  # sets constants, draws nothing
        elif kind is nn.Embedding:
            nn.init.normal_(part.weight, generator=generator)
        elif kind in (nn.Linear, nn.Conv2d):
            if kind is nn.Conv2d and conv_rule == "fan_out":
                nn.init.kaiming_normal_(
                    part.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            else:
                nn.init.kaiming_uniform_(part.weight, a=sqrt(5), generator=generator)
            if part.bias is not None:
                bound = 1 / sqrt(part.weight[0].numel())
                nn.init.uniform_(part.bias, -bound, bound, generator=generator)
        elif strict and [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            raise TypeError(
                f"there is no rule to initialise {name or 'the module'!r} ({kind.__name__}); add a "
                "rule to fedray/models/init.py."
            )


def drawn_linear(inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a linear layer's weight [outputs, inputs] and bias [outputs] as PyTorch does."""
    bound = inputs**-0.5
    weight, bias = torch.empty(outputs, inputs), torch.empty(outputs)
    weight.uniform_(-bound, bound, generator=generator)
    return weight, bias.uniform_(-bound, bound, generator=generator)


def undrawn_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer on the CPU for `initialise`; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]), CPU:
        return nn.Linear(inputs, outputs, bias=bias)


def width_of(name: str, backbone: nn.Module, channels: int, image_size: int) -> int:
    """Return the width of a network's output, found by forward passes of two grey images.

    Raises:
        UserError: if the output is not one vector per image, in training too, or such images are
            not accepted.
    """
    images = torch.zeros(2, channels, image_size, image_size)
    shapes = []
    for network in (deepcopy(backbone).eval(), deepcopy(backbone).train()):
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):  # for dropout
                output = network(images)
        except (RuntimeError, ValueError, IndexError) as error:
            raise UserError(
                f"{name} cannot take images of {channels}x{image_size}x{image_size}: "
                f"{named(error)}{plugin_line(error)}; build it from the arguments (channels, "
                "image_size)"
            ) from None
        shapes.append([*output.shape] if isinstance(output, Tensor) else type(output).__name__)
    if shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != 2:
        raise UserError(
            f"{name} gives {shapes[0]} in tests and {shapes[1]} in training for images "
            f"{list(images.shape)}, expected one vector of features per image, [2, n]; end it in "
            "nn.Flatten() or a mean over the map"
        )
    return int(shapes[0][1])
