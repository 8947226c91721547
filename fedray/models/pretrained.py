"""Backbones that start from torchvision's weights, by their name or from a local file.

What is loaded is the backbone; head, adapter and projector keep their drawn values. A tensor goes
by torchvision's name for it, found by laying both networks out: their layers stand in one order.

    resnet18 to resnet152, mobilenetv2   all of it
    resnet18_small, resnet50_small       all but the stem (3x3, not 7x7), which stays as drawn
    alexnet                              the convolutions; batch norm, which torchvision's network
                                         has not, stays as drawn

Images are in [-1, 1] here and not scaled by ImageNet's mean and deviation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedray.config import WEIGHT_FILES
from fedray.errors import UserError, nearest
from fedray.models.backbones import ARCHITECTURES

__all__ = ["check_pretrained", "load_pretrained"]


class _Layout(NamedTuple):
    """How a backbone's tensors and torchvision's correspond.

    Attributes:
        model: what torchvision calls the network.
        own: prefixes of the backbone's tensors that have no counterpart.
        left: prefixes of torchvision's tensors that have none.
    """

    model: str
    own: tuple[str, ...] = ()
    left: tuple[str, ...] = ("fc.", "classifier.")


_LAYOUTS: Mapping[str, _Layout] = MappingProxyType(
    {
        **{f"resnet{depth}": _Layout(f"resnet{depth}") for depth in (18, 34, 50, 101, 152)},
        **{
            f"resnet{depth}_small": _Layout(f"resnet{depth}", ("stem.",), ("fc.", "conv1.", "bn1."))
            for depth in (18, 50)
        },
        "mobilenetv2": _Layout("mobilenet_v2"),
        "alexnet": _Layout("alexnet", own=("1.", "5.", "9.", "12.", "15.")),
    }
)


def _is_file(source: str) -> bool:
    """Whether `model.pretrained` names a file, not weights of torchvision."""
    return Path(source).suffix in WEIGHT_FILES


def check_pretrained(source: str, architectures: Collection[str]) -> None:
    """Check, without reading the weights, that every architecture can start from `source`.

    Raises:
        UserError: when an architecture is not laid out as one of torchvision's, the file is not
            there, or the name is not of weights for that architecture.
    """
    for architecture in sorted(set(architectures)):
        if architecture not in _LAYOUTS:
            raise UserError(
                f"model.pretrained={source}: {architecture} is not laid out as a network of "
                f"torchvision; set model.group to one of {', '.join(_LAYOUTS)}, or leave "
                "model.pretrained out"
            )
        if not _is_file(source):
            from torchvision.models import get_model_weights

            reference = _LAYOUTS[architecture].model
            known = [str(weights) for weights in get_model_weights(reference)]
            if source not in known:
                raise UserError(
                    f"model.pretrained={source} is neither a file ({', '.join(WEIGHT_FILES)}) nor "
                    f"weights that torchvision has for {reference}.{nearest(source, known)}"
                )
    if _is_file(source) and not Path(source).is_file():
        raise UserError(f"model.pretrained={source} does not exist; pass a file of a state dict")


@torch.no_grad()
def load_pretrained(backbone: nn.Module, architecture: str, source: str) -> None:
    """Put pre-trained weights into a backbone, in place.

    Args:
        backbone: of that architecture, `Classifier.extractor.backbone`.
        architecture: checked by `check_pretrained`.
        source: a file of a state dict with torchvision's names, or the name of weights that
            torchvision has, for example ResNet18_Weights.IMAGENET1K_V1.

    Raises:
        UserError: when the weights cannot be had or read, or a tensor that should fit does not.
    """
    layout = _LAYOUTS[architecture]
    state = _from_file(source) if _is_file(source) else _from_torchvision(source)
    names = _names(architecture)
    known = set(names.values())
    surplus = [n for n in state if n not in known and not n.startswith(layout.left)]
    if surplus:
        raise _misfit(source, architecture, f"has {surplus[0]}, which {layout.model} has not")
    for own, tensor in backbone.state_dict().items():
        if own not in names:
            continue
        name = names[own]
        found = state.get(name)
        if found is None and name.endswith("num_batches_tracked"):
            continue  # files older than the counter, which nothing reads, lack it
        if found is None:
            raise _misfit(source, architecture, f"has no {name}")
        if found.shape != tensor.shape:
            expected = f"expected {list(tensor.shape)}"
            if found.dim() == 4 and tensor.dim() == 4 and tensor.shape[1] == 1 != found.shape[1]:
                expected += f" (set data.channels={found.shape[1]})"
            raise _misfit(source, architecture, f"{name} is {list(found.shape)}, {expected}")
        tensor.copy_(found)


def _misfit(source: str, architecture: str, what: str) -> UserError:
    return UserError(f"model.pretrained={source} does not fit {architecture}: {what}")


@lru_cache(maxsize=8)
def _names(architecture: str) -> Mapping[str, str]:
    """Torchvision's name of every tensor of a backbone that has one."""
    from torchvision.models import get_model

    layout = _LAYOUTS[architecture]
    with torch.device("meta"):
        ours = ARCHITECTURES[architecture].make(3, 224).state_dict()
        theirs = get_model(layout.model, weights=None).state_dict()
    own = [name for name in ours if not name.startswith(layout.own)] if layout.own else list(ours)
    return dict(zip(own, (n for n in theirs if not n.startswith(layout.left)), strict=True))


@lru_cache(maxsize=1)
def _from_torchvision(name: str) -> Mapping[str, Tensor]:
    from torchvision.models import get_weight

    try:
        state: Mapping[str, Tensor] = get_weight(name).get_state_dict(
            progress=False, check_hash=True
        )
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"model.pretrained={name} could not be downloaded ({error}); pass a local file, "
            "for example model.pretrained=/path/resnet18.pth"
        ) from None
    return state


@lru_cache(maxsize=1)
def _from_file(source: str) -> Mapping[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if source.endswith(".safetensors"):
            return load_file(source)
        state = torch.load(source, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError, SafetensorError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"model.pretrained={source} cannot be read: {reason}") from None
    if not isinstance(state, Mapping) or not all(isinstance(t, Tensor) for t in state.values()):
        raise UserError(
            f"model.pretrained={source} holds no state dict; expected tensors by name, as "
            "torch.save(model.state_dict(), file) writes them"
        )
    return state
