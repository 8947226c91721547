"""Load torchvision's weights into backbones, by name or from a local file.

All tensors of a backbone are loaded that torchvision's network has by the same name, batch norm
included, but for an architecture's `own`. All other tensors, the head and the adapter keep their
drawn values. So does the projector, except for hidden layers of torchvision's network (AlexNet's
FC6 and FC7) of equal width. A line in the log names the loaded layers.

Images are scaled by ImageNet's mean and standard deviation (`ImageNetPixels`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fedray.config import WEIGHT_FILES
from fedray.errors import UserError, nearest, one_line
from fedray.language.encoders.weights import check_reachable, read_weights
from fedray.models.architectures import architectures

_log = logging.getLogger(__name__)


def _is_file(source: str) -> bool:
    """Return True if `model.pretrained` is a file, not a name of torchvision's weights."""
    return Path(source).suffix in WEIGHT_FILES


def check_pretrained(source: str, names: Collection[str]) -> None:
    """Check, without reading weights, that every architecture can start from `source`.

    Args:
        source: `model.pretrained`, see `load_pretrained`.
        names: the names of the architectures.

    Raises:
        UserError: if an architecture does not correspond to a network of torchvision, the file does
            not exist, or torchvision has no weights of this name for the architecture.
    """
    for name in sorted(set(names)):
        reference = architectures.get(name).reference
        if not reference:
            possible = [entry.name for entry in architectures.entries() if entry.reference]
            raise UserError(
                f"model.pretrained={source}: {name} does not correspond to a network of "
                f"torchvision; set model.group to one of {', '.join(possible)}, or leave "
                "model.pretrained out"
            )
        if not _is_file(source):
            _check_name(source, reference)
    if _is_file(source) and not Path(source).is_file():
        raise UserError(f"model.pretrained={source} does not exist; pass a file of a state dict")


def _check_name(source: str, reference: str) -> None:
    """Raise a UserError if torchvision has no weights of this name for a network."""
    from torchvision.models import get_model_weights

    valid = [str(weights) for weights in get_model_weights(reference)]
    if source not in valid:
        raise UserError(
            f"model.pretrained={source} is neither a file ({', '.join(WEIGHT_FILES)}) nor "
            f"weights that torchvision has for {reference}.{nearest(source, valid)}"
        )


def start_from_pretrained(extractor: nn.Module, architecture: str, source: str) -> None:
    """Load pre-trained weights into an extractor, in place, and log the loaded layers.

    Args:
        extractor: the extractor of a model of this architecture.
        architecture: the architecture, checked by `check_pretrained`.
        source: see `load_pretrained`.

    Raises:
        UserError: as `load_pretrained`.
    """
    load_pretrained(extractor.get_submodule("backbone"), architecture, source)
    backbone = extractor.get_submodule("backbone")
    loaded = ["backbone." + name for name in _shared_names(architecture, backbone)]
    if "projector" in dict(extractor.named_children()):
        projector = extractor.get_submodule("projector")
        loaded += ["projector." + n for n in load_projector(projector, architecture, source)]
    _log_loaded(architecture, source, tuple(loaded), tuple(extractor.state_dict()))


@lru_cache(maxsize=64)
def _log_loaded(
    architecture: str, source: str, loaded: Sequence[str], tensors: Sequence[str]
) -> None:
    """Log, once per process, which layers are loaded and which keep their drawn values."""

    def layers(names: Collection[str]) -> str:
        parts = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name in names)
        return ", ".join([*list(parts)[:12], *(["..."] if len(parts) > 12 else [])]) or "none"

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
    """Load the hidden layers of torchvision's network into a projector, if their shapes fit.

    Args:
        projector: the projector of a model of this architecture.
        architecture: the architecture, checked by `check_pretrained`.
        source: see `load_pretrained`.

    Returns:
        The names of the projector's loaded tensors.

    Raises:
        UserError: if the weights cannot be downloaded or read.
    """
    state, tensors, loaded = _state(source), projector.state_dict(), []
    for prefix, reference in architectures.get(architecture).projector:
        stored = {name: state.get(reference + name) for name in ("weight", "bias")}
        if all(
            tensor is not None and tensor.shape == tensors[prefix + name].shape
            for name, tensor in stored.items()
        ):
            for name, tensor in stored.items():
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
    """Load pre-trained weights into a backbone, in place.

    Args:
        backbone: the backbone of a model of this architecture.
        architecture: the architecture, checked by `check_pretrained`.
        source: a state-dict file with torchvision's names, or a name of torchvision's weights, for
            example ResNet18_Weights.IMAGENET1K_V1.

    Raises:
        UserError: if the weights cannot be downloaded or read, or a tensor does not fit.
    """
    state, reference = _state(source), architectures.get(architecture).reference
    if surplus := [name for name in state if name not in _names(reference)]:
        raise _misfit(
            source, architecture, f"the weights have {surplus[0]}, which {reference} lacks"
        )
    tensors = backbone.state_dict()
    for name, theirs in _shared_names(architecture, backbone).items():
        stored = state.get(theirs)
        if stored is None and theirs.endswith("num_batches_tracked"):
            continue  # missing in old files; nothing reads this counter
        if stored is None:
            raise _misfit(source, architecture, f"the weights have no {theirs}")
        _check_shape(stored, tensors[name], theirs, source, architecture)
        tensors[name].copy_(stored)


def _check_shape(
    stored: Tensor, tensor: Tensor, reference: str, source: str, architecture: str
) -> None:
    if stored.shape == tensor.shape:
        return
    expected = f"expected {list(tensor.shape)}"
    if stored.dim() == 4 and tensor.dim() == 4 and tensor.shape[1] == 1 != stored.shape[1]:
        expected += f" (set data.channels={stored.shape[1]})"
    raise _misfit(source, architecture, f"{reference} is {list(stored.shape)}, {expected}")


def _misfit(source: str, architecture: str, what: str) -> UserError:
    return UserError(f"model.pretrained={source} does not fit {architecture}: {what}")


def _shared_names(architecture: str, backbone: nn.Module) -> dict[str, str]:
    """Return the tensors that torchvision's network has, too: their names here and there."""
    spec = architectures.get(architecture)
    named = {n: spec.within + n for n in backbone.state_dict() if not n.startswith(spec.own)}
    return {name: theirs for name, theirs in named.items() if theirs in _names(spec.reference)}


@lru_cache(maxsize=8)
def _names(reference: str) -> frozenset[str]:
    """Return the names of all tensors of torchvision's network."""
    from torchvision.models import get_model

    with torch.device("meta"):
        return frozenset(get_model(reference, weights=None).state_dict())


@lru_cache(maxsize=1)
def _from_torchvision(name: str) -> Mapping[str, Tensor]:
    """Return torchvision's weights, from torch's cache or from the network."""
    from torchvision.models import get_weight

    weights = get_weight(name)
    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    if not file.is_file():
        try:
            check_reachable(weights.url)
            weights.get_state_dict(progress=False, check_hash=True)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"model.pretrained={name} could not be downloaded ({one_line(error)}); pass a "
                "local file, for example model.pretrained=/path/resnet18.pth"
            ) from None
    return read_weights(file, f"model.pretrained={name}", "delete it to have it downloaded again")


@lru_cache(maxsize=1)
def _from_file(source: str, modified: int) -> Mapping[str, Tensor]:
    del modified  # only part of the cache key
    return read_weights(Path(source), "model.pretrained", "pass a file of a state dict")
