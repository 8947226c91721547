"""Questions about a model's structure, answered by its modules, never by their names."""

from collections.abc import Iterable

from torch import nn

from fedray.models.classifier import Classifier

__all__ = ["head_tensors", "is_normalisation", "normalisation_tensors", "tensor_names"]


def is_normalisation(module: nn.Module) -> bool:
    """Whether a module normalises: batch, layer, group and instance norm."""
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    return isinstance(module, kinds)


def head_tensors(model: Classifier) -> frozenset[str]:
    """The names of the head's parameters and buffers."""
    return frozenset(_names(model.head, "head."))


def tensor_names(model: nn.Module) -> frozenset[str]:
    """The names of all parameters and buffers."""
    return frozenset(_names(model, ""))


def normalisation_tensors(model: nn.Module) -> frozenset[str]:
    """The names of all parameters and buffers of normalisation layers."""
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if is_normalisation(module)
        for name in _names(module, f"{prefix}.")
    )


def _names(module: nn.Module, prefix: str) -> Iterable[str]:
    yield from (prefix + name for name, _ in module.named_parameters())
    yield from (prefix + name for name, _ in module.named_buffers())
