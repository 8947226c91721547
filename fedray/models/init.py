"""Build classifiers whose weights depend on a given random generator alone.

torch's global generator is not changed.
"""

from copy import deepcopy
from itertools import chain
from math import sqrt
from typing import Any, NotRequired, TypedDict, Unpack

import torch
from torch import Tensor, nn

from fedray.errors import UserError, named, plugin_line
from fedray.models.architectures import Architecture, ConvRule, architectures
from fedray.models.classifier import BackboneClassifier, Classifier
from fedray.models.structure import saved_buffers
from fedray.streams import torch_seeded

_KNOWN_TENSORS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


class Shape(TypedDict):
    """The widths of a classifier's parts.

    Attributes:
        channels: channels of the images, 1 or 3.
        image_size: side of the square images, in pixels.
        num_classes: C, width of the logits; 0 for a model without head.
        feature_dim: d, common width of the features.
        hidden: width between the projector's two layers; None, the default, for no projector.
        imagenet: whether images are scaled by ImageNet's mean and standard deviation; False, the
            default, leaves them in [-1, 1].
    """

    channels: int
    image_size: int
    num_classes: int
    feature_dim: int
    hidden: NotRequired[int | None]
    imagenet: NotRequired[bool]


def build(
    architecture: str, *, generator: torch.Generator | None, **shape: Unpack[Shape]
) -> Classifier:
    """Build a classifier on the CPU, in training mode, and draw its weights from `generator`.

    Args:
        architecture: the name of a registered architecture.
        generator: CPU generator, advanced by the call. None means a new one of seed 0, so that
            equal architectures have equal weights for every seed of the run (as in HtFLlib).
        **shape: the widths, see `Shape`.

    Raises:
        UserError: if the architecture is unknown, or images are too small for it.
    """
    spec = architectures.get(architecture)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    module = _constructed(spec, shape, generator if spec.keeps_init else None)
    drawn = module.get_submodule("extractor.backbone") if spec.keeps_init else None
    initialise(module, generator, conv_rule=spec.conv_rule, drawn=drawn)
    return module


def skeleton(architecture: str, **shape: Unpack[Shape]) -> Classifier:
    """Build a classifier of zeros on the CPU, to load states into; arguments as for `build`.

    Raises:
        UserError: if the architecture is unknown, or images are too small for it.
    """
    module = _constructed(architectures.get(architecture), shape)
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
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return width_of(spec.name, spec.make(channels, image_size), channels, image_size)


def initialise(
    module: nn.Module,
    generator: torch.Generator,
    *,
    conv_rule: ConvRule = "uniform",
    drawn: nn.Module | None = None,
) -> None:
    """Set every parameter and buffer of `module` in place, in the order of its submodules.

    Linear: PyTorch's default, weights Kaiming-uniform with a = sqrt(5), biases uniform within
    1/sqrt(fan_in). Conv2d: the same, or with `conv_rule="fan_out"` weights Kaiming-normal by
    fan-out for ReLU. Batch norm: weight 1, bias 0, mean 0, variance 1, no batches. Embedding:
    standard normal.

    Args:
        module: a module on the CPU.
        generator: a CPU generator, advanced by the call.
        conv_rule: the rule for convolutions.
        drawn: a part of the module that keeps its values.

    Raises:
        TypeError: if a submodule holds tensors that no rule covers.
    """
    for name, layer in module.named_modules(memo=set(() if drawn is None else drawn.modules())):
        direct = chain(layer.named_parameters(recurse=False), layer.named_buffers(recurse=False))
        tensors = {key for key, _ in direct}
        if tensors and not (
            tensors <= _KNOWN_TENSORS and _initialise_layer(layer, generator, conv_rule)
        ):
            raise TypeError(
                f"there is no rule to initialise {sorted(tensors)} of {name or 'the module'!r} "
                f"({type(layer).__name__}); add a rule to fedray/models/init.py."
            )


def drawn_linear(inputs: int, outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a linear layer's weight [outputs, inputs] and bias [outputs] as PyTorch does."""
    bound = inputs**-0.5
    weight, bias = torch.empty(outputs, inputs), torch.empty(outputs)
    weight.uniform_(-bound, bound, generator=generator)
    return weight, bias.uniform_(-bound, bound, generator=generator)


def undrawn_linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer on the CPU for `initialise`; the global generator is not changed."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return nn.Linear(inputs, outputs, bias=bias)


def _initialise_layer(layer: Any, generator: torch.Generator, conv_rule: ConvRule) -> bool:
    """Set the tensors of one layer; return False if no rule covers the layer."""
    kind = type(layer)  # not isinstance, because a subclass may hold further tensors
    if kind is nn.Conv2d and conv_rule == "fan_out":
        nn.init.kaiming_normal_(
            layer.weight, mode="fan_out", nonlinearity="relu", generator=generator
        )
        _initialise_bias(layer, generator)
    elif kind in (nn.Linear, nn.Conv2d):
        nn.init.kaiming_uniform_(layer.weight, a=sqrt(5), generator=generator)
        _initialise_bias(layer, generator)
    elif kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        layer.reset_parameters()  # sets constants, draws nothing
    elif kind is nn.Embedding:
        nn.init.normal_(layer.weight, generator=generator)
    else:
        return False
    return True


def _initialise_bias(layer: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    """Draw a bias uniformly within ±1/sqrt(fan_in)."""
    if layer.bias is not None:
        bound = 1 / sqrt(layer.weight[0].numel())
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def width_of(name: str, backbone: nn.Module, channels: int, image_size: int) -> int:
    """Return the width of a network's output, found by forward passes of two grey images.

    Raises:
        UserError: if the output is not one vector per image, in training too, or such images are
            not accepted.
    """
    images = torch.zeros(2, channels, image_size, image_size)
    was_training = backbone.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # for dropout
            outputs = [backbone.eval()(images), deepcopy(backbone).train()(images)]
    except (RuntimeError, ValueError, IndexError) as error:
        raise UserError(
            f"{name} cannot take images of {channels}x{image_size}x{image_size}: {named(error)}"
            f"{plugin_line(error)}; build it from the arguments (channels, image_size)"
        ) from None
    finally:
        backbone.train(was_training)
    shapes = [
        list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        for output in outputs
    ]
    for shape, mode in zip(shapes, ("", " in training"), strict=True):
        if isinstance(shape, str) or len(shape) != 2 or shape[0] != 2 or shape != shapes[0]:
            raise UserError(
                f"{name} gives {shape}{mode} for images {list(images.shape)}, expected one vector "
                "of features per image, [2, n]; end it in nn.Flatten() or a mean over the map"
            )
    return int(shapes[0][1])


def _constructed(
    spec: Architecture, shape: Shape, generator: torch.Generator | None = None
) -> Classifier:
    """Construct a classifier with any values, or with a backbone drawn by a seed of `generator`."""
    channels, image_size = shape["channels"], shape["image_size"]
    if image_size < spec.min_image_size:
        raise UserError(
            f"{spec.name}: images of {image_size}x{image_size} pixels are too small, it needs "
            f"at least {spec.min_image_size}x{spec.min_image_size}; raise data.image_size or "
            f"choose another model.group."
        )
    seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
    with torch_seeded(seed, torch.device("cpu")), torch.device("cpu"):
        backbone, raw = spec.make(channels, image_size), spec.raw
        if raw is None:
            raw = width_of(spec.name, backbone, channels, image_size)
        return BackboneClassifier(
            backbone.train(),
            raw,
            shape["feature_dim"],
            shape["num_classes"],
            hidden=shape.get("hidden"),
            channels_last=spec.channels_last,
            imagenet=shape.get("imagenet", False),
            dense=spec.dense,
        )
