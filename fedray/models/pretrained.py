"""Load torchvision's weights into backbones, by name or from a local file.

An architecture names the tensors that it shares with torchvision's network, batch norm included.
All others, the head and the adapter keep their drawn values. So does the projector, except for
hidden layers of torchvision's network (AlexNet's FC6 and FC7) of equal width. A line in the log
names the loaded layers.

Images are scaled by ImageNet's mean and standard deviation (`ImageNetPixels`).
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedray.base.errors import UserError, nearest, one_line, warn_once
from fedray.config import WEIGHT_FILES
from fedray.language.encoders.weights import reading
from fedray.models.architectures import architectures


def _is_file(source: str) -> bool:
    """Return True if `model.pretrained` is a file, not a name of torchvision's weights."""
    return Path(source).suffix in WEIGHT_FILES


def check_pretrained(source: str, names: Collection[str]) -> None:
    """Check, without reading weights, that every architecture can start from `source`.

    Args:
        source: `model.pretrained`, see `start_from_pretrained`.
        names: the names of the architectures.

    Raises:
        UserError: if an architecture does not correspond to a network of torchvision, the file does
            not exist, or torchvision has no weights of this name for the architecture.
    """
    from torchvision.models import get_model_weights

    for name in sorted(set(names)):
        reference = architectures.get(name).reference
        if not reference:
            raise UserError(
                f"model.pretrained={source}: {name} does not correspond to a network of "
                "torchvision; set model.group to one that does, for example resnet18"
            )
        valid = [str(weights) for weights in get_model_weights(reference)]
        if not _is_file(source) and source not in valid:
            raise UserError(
                f"model.pretrained={source} is neither a file ({', '.join(WEIGHT_FILES)}) nor "
                f"weights that torchvision has for {reference}.{nearest(source, valid)}"
            )
    if _is_file(source) and not Path(source).is_file():
        raise UserError(f"model.pretrained={source} does not exist; pass a file of a state dict")


def start_from_pretrained(extractor: nn.Module, architecture: str, source: str) -> None:
    """Load pre-trained weights into an extractor, in place, and log the loaded layers.

    Args:
        extractor: the extractor of a model of this architecture.
        architecture: the architecture, checked by `check_pretrained`.
        source: a state-dict file with torchvision's names, or a name of torchvision's weights, for
            example ResNet18_Weights.IMAGENET1K_V1.

    Raises:
        UserError: if the weights cannot be downloaded or read, or a tensor does not fit.
    """
    path, spec = Path(source), architectures.get(architecture)
    state = _read(source, path.stat().st_mtime_ns if _is_file(source) else 0)
    misfit = f"model.pretrained={source} does not fit {architecture}: "
    known, tensors, loaded = _names(spec.reference), extractor.state_dict(), dict[str, Tensor]()
    if surplus := [name for name in state if name not in known]:
        raise UserError(f"{misfit}the weights have {surplus[0]}, which {spec.reference} lacks")
    shared = (
        (name, a, b) for name in tensors for a, b in spec.shares.items() if name.startswith(a)
    )
    for name, ours, prefix in shared:
        theirs, is_hidden = prefix + name.removeprefix(ours), ours.startswith("projector.")
        if theirs in state and not (is_hidden and state[theirs].shape != tensors[name].shape):
            loaded[name] = state[theirs]
        elif theirs in known and not is_hidden and not theirs.endswith("num_batches_tracked"):
            raise UserError(f"{misfit}the weights have no {theirs}")  # old files lack counters
    try:
        extractor.load_state_dict(loaded, strict=False)
    except RuntimeError as error:
        raise UserError(f"{misfit}{one_line(error)}") from None
    drawn = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name not in loaded)
    counts = f"{len(loaded)} of {architecture}'s {len(tensors)} tensors are loaded"
    warn_once(f"model.pretrained={source}: {counts}; drawn: {', '.join([*drawn, 'the head'])}")


@lru_cache(maxsize=8)
def _names(reference: str) -> frozenset[str]:
    """Return the names of all tensors of torchvision's network."""
    from torchvision.models import get_model

    with torch.device("meta"):
        return frozenset(get_model(reference, weights=None).state_dict())


@lru_cache(maxsize=1)
def _read(source: str, written: int) -> Mapping[str, Tensor]:
    """Return the tensors of a file, written at this time, or of torchvision's weights, by name."""
    del written
    if _is_file(source):
        with reading(f"model.pretrained: {source} is not a weight file"):
            return _tensors(Path(source))
    from torchvision.models import get_weight

    weights = get_weight(source)
    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    with reading(
        f"model.pretrained={source} could not be downloaded to {file} or read from it; delete a "
        "damaged file, or pass a local one, for example model.pretrained=/path/resnet18.pth"
    ):
        state: Mapping[str, Tensor]
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        return state


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict, alone or in a checkpoint, without DataParallel's prefix.

    Raises:
        ValueError: if the file holds anything else, or values that are no numbers.
    """
    from safetensors.torch import load_file

    state: Any
    if path.suffix == ".safetensors":
        state = load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    if not state or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ValueError("it holds no state dict, that is, tensors by name")
    if damaged := [name for name, tensor in state.items() if tensor.isnan().any()]:
        raise ValueError(f"it has values that are no numbers in {damaged[0]}")
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}
