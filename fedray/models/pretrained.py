"""Backbones that start from torchvision's weights, by their name or from a local file.

What is loaded is the backbone, batch norm included where torchvision's network has it. A tensor
goes by torchvision's name for it, found by listing both networks' layers: their order is the same.
What has no counterpart there (an architecture's `pretrained_layout` names it) stays as drawn. So do
head and adapter, and the projector, except for hidden layers that are torchvision's (AlexNet's FC6
and FC7) where they are as wide as there. One line of the log names the loaded layers.

Images are in [-1, 1] here and not scaled by ImageNet's mean and deviation.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from fedray.config import WEIGHT_FILES
from fedray.errors import UserError, nearest
from fedray.models.architectures import PretrainedLayout, architectures

_log = logging.getLogger(__name__)


def _is_file(source: str) -> bool:
    """Return True if `model.pretrained` names a file, not weights of torchvision."""
    return Path(source).suffix in WEIGHT_FILES


def check_pretrained(source: str, names: Collection[str]) -> None:
    """Check, without reading the weights, that every architecture can start from `source`.

    Args:
        source: `model.pretrained`, see `load_pretrained`.
        names: of the architectures.

    Raises:
        UserError: if an architecture is not laid out as one of torchvision's, the file is not
            there, or the name is not of weights for that architecture.
    """
    for name in sorted(set(names)):
        layout = architectures.get(name).pretrained_layout
        if layout is None:
            possible = [entry.name for entry in architectures.entries() if entry.pretrained_layout]
            raise UserError(
                f"model.pretrained={source}: {name} is not laid out as a network of torchvision; "
                f"set model.group to one of {', '.join(possible)}, or leave model.pretrained out"
            )
        if not _is_file(source):
            _check_name(source, layout.reference)
    if _is_file(source) and not Path(source).is_file():
        raise UserError(f"model.pretrained={source} does not exist; pass a file of a state dict")


def _check_name(source: str, reference: str) -> None:
    """Raise a UserError for a name that is not of torchvision's weights for this network."""
    from torchvision.models import get_model_weights

    known = [str(weights) for weights in get_model_weights(reference)]
    if source not in known:
        raise UserError(
            f"model.pretrained={source} is neither a file ({', '.join(WEIGHT_FILES)}) nor "
            f"weights that torchvision has for {reference}.{nearest(source, known)}"
        )


def start_from_pretrained(extractor: nn.Module, architecture: str, source: str) -> None:
    """Put pre-trained weights into every layer that they fit, in place, and say into which.

    Args:
        extractor: of that architecture, `Classifier.extractor`.
        architecture: checked by `check_pretrained`.
        source: see `load_pretrained`.

    Raises:
        UserError: as `load_pretrained`.
    """
    load_pretrained(extractor.get_submodule("backbone"), architecture, source)
    loaded = ["backbone." + name for name in _reference_names(architecture)]
    if "projector" in dict(extractor.named_children()):
        projector = extractor.get_submodule("projector")
        loaded += ["projector." + n for n in load_projector(projector, architecture, source)]
    _say_loaded(architecture, source, tuple(loaded), tuple(extractor.state_dict()))


@lru_cache(maxsize=64)
def _say_loaded(
    architecture: str, source: str, loaded: Sequence[str], tensors: Sequence[str]
) -> None:
    """Log once in a process which layers start from the weights, and which are drawn."""

    def layers(names: Collection[str]) -> str:
        found = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name in names)
        return ", ".join([*list(found)[:12], *(["..."] if len(found) > 12 else [])]) or "none"

    _log.warning(
        "model.pretrained=%s: %d of %s's %d tensors are loaded (%s); drawn: %s, and the head",
        source,
        len(loaded),
        architecture,
        len(tensors),
        layers(set(loaded)),
        layers(set(tensors) - set(loaded)),
    )


@torch.no_grad()
def load_projector(projector: nn.Module, architecture: str, source: str) -> list[str]:
    """Put the hidden layers of torchvision's network into a projector, where their shapes fit.

    Args:
        projector: of that architecture, `Classifier.extractor.projector`.
        architecture: checked by `check_pretrained`.
        source: see `load_pretrained`.

    Returns:
        The names of the projector's tensors that were loaded.

    Raises:
        UserError: if the weights cannot be had or read.
    """
    state, tensors, loaded = _state(source), projector.state_dict(), []
    for prefix, reference in _layout(architecture).projector:
        found = {name: state.get(reference + name) for name in ("weight", "bias")}
        if all(
            tensor is not None and tensor.shape == tensors[prefix + name].shape
            for name, tensor in found.items()
        ):
            for name, tensor in found.items():
                tensors[prefix + name].copy_(tensor)
                loaded.append(prefix + name)
    return loaded


def _state(source: str) -> Mapping[str, Tensor]:
    if not _is_file(source):
        return _from_torchvision(source)
    path = Path(source)
    return _from_file(source, path.stat().st_mtime_ns if path.is_file() else 0)


@torch.no_grad()
def load_pretrained(backbone: nn.Module, architecture: str, source: str) -> None:
    """Put pre-trained weights into a backbone, in place.

    Args:
        backbone: of that architecture, `Classifier.extractor.backbone`.
        architecture: checked by `check_pretrained`.
        source: a file of a state dict with torchvision's names, or the name of weights that
            torchvision has, for example ResNet18_Weights.IMAGENET1K_V1.

    Raises:
        UserError: if the weights cannot be had or read, or a tensor that should fit does not.
    """
    layout = _layout(architecture)
    state = _state(source)
    names = _reference_names(architecture)
    known = set(names.values())
    surplus = [n for n in state if n not in known and not n.startswith(layout.reference_only)]
    if surplus:
        what = f"has {surplus[0]}, which {layout.reference} has not"
        raise _misfit(source, architecture, what)
    tensors = backbone.state_dict()
    for name, reference in names.items():
        found = state.get(reference)
        if found is None and reference.endswith("num_batches_tracked"):
            continue  # files older than the counter, which nothing reads, lack it
        if found is None:
            raise _misfit(source, architecture, f"has no {reference}")
        _check_shape(found, tensors[name], reference, source, architecture)
        tensors[name].copy_(found)


def _check_shape(
    found: Tensor, tensor: Tensor, reference: str, source: str, architecture: str
) -> None:
    if found.shape == tensor.shape:
        return
    expected = f"expected {list(tensor.shape)}"
    if found.dim() == 4 and tensor.dim() == 4 and tensor.shape[1] == 1 != found.shape[1]:
        expected += f" (set data.channels={found.shape[1]})"
    raise _misfit(source, architecture, f"{reference} is {list(found.shape)}, {expected}")


def _misfit(source: str, architecture: str, what: str) -> UserError:
    return UserError(f"model.pretrained={source} does not fit {architecture}: {what}")


def _layout(architecture: str) -> PretrainedLayout:
    layout = architectures.get(architecture).pretrained_layout
    if layout is None:
        raise ValueError(f"{architecture} is not laid out as a network of torchvision")
    return layout


@lru_cache(maxsize=8)
def _reference_names(architecture: str) -> Mapping[str, str]:
    """Return torchvision's names of a backbone's tensors that have one, in its order."""
    from torchvision.models import get_model

    layout = _layout(architecture)
    with torch.device("meta"):
        backbone = architectures.get(architecture).make(3, 224).state_dict()
        reference = get_model(layout.reference, weights=None).state_dict()
    return dict(
        zip(
            (name for name in backbone if not name.startswith(layout.backbone_only)),
            (name for name in reference if not name.startswith(layout.reference_only)),
            strict=True,
        )
    )


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
def _from_file(source: str, modified: int) -> Mapping[str, Tensor]:
    del modified  # part of the cache key alone
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
