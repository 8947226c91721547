"""Parts of a model (buffers, normalisation, head), found by its modules, never by their names."""

from collections.abc import Callable, Iterable
from functools import wraps
from weakref import WeakKeyDictionary

from torch import nn

from fedray.models.classifier import Classifier


def _once_per_model(
    ask: Callable[[Classifier], frozenset[str]],
) -> Callable[[Classifier], frozenset[str]]:
    """Remember the answer as long as the model lives: its structure does not change."""
    known: WeakKeyDictionary[Classifier, frozenset[str]] = WeakKeyDictionary()

    @wraps(ask)
    def answer(model: Classifier) -> frozenset[str]:
        if model not in known:
            known[model] = ask(model)
        return known[model]

    return answer


def is_normalisation(module: nn.Module) -> bool:
    """Return True if a module normalises: batch, layer, group and instance norm."""
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    return isinstance(module, kinds)


def convolution_stages(model: Classifier) -> list[nn.Module]:
    """Return the last module of every stage of the backbone that gives maps, in their order.

    A stage is a convolution, or a block of the backbone that holds some, with the normalisation,
    activation and max-pooling that follow it: five in AlexNet, stem and stages in a residual net.
    Unlike the last one of `stages`, the last one ends before its maps become a vector.
    """
    follow = (nn.ReLU, nn.ReLU6, nn.MaxPool2d, nn.BatchNorm2d)
    ends: list[nn.Module] = []
    inside = False
    for part in model.get_submodule("extractor.backbone").children():
        if any(isinstance(module, nn.Conv2d) for module in part.modules()):
            ends.append(part)
            inside = True
        elif inside and isinstance(part, follow):
            ends[-1] = part
        else:
            inside = False
    return ends


@_once_per_model
def head_tensors(model: Classifier) -> frozenset[str]:
    """Return the names of the head's parameters and buffers."""
    return frozenset(_names(model.head, "head."))


@_once_per_model
def tensor_names(model: Classifier) -> frozenset[str]:
    """Return the names of all parameters and buffers."""
    return frozenset(_names(model, ""))


@_once_per_model
def buffer_names(model: Classifier) -> frozenset[str]:
    """Return the names of all buffers: running statistics and counters."""
    return frozenset(name for name, _ in model.named_buffers())


@_once_per_model
def normalisation_tensors(model: Classifier) -> frozenset[str]:
    """Return the names of all parameters and buffers of normalisation layers."""
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if is_normalisation(module)
        for name in _names(module, f"{prefix}.")
    )


def stages(model: Classifier) -> dict[str, nn.Module]:
    """Return the model's stages in order: the module that ends each, by the name of what begins it.

    A stage begins with a layer or block that has convolutions or linear maps ("backbone.stage1",
    "projector.0", "head") and ends before the next one, so that normalisation, activation and
    pooling belong to it; the extractor's last stage ends in the features.
    """
    ends: dict[str, nn.Module] = {}
    name = ""
    for prefix, part in (*model.get_submodule("extractor").named_children(), ("head", model.head)):
        inner = part.named_children() if isinstance(part, nn.Sequential) else [("", part)]
        for key, module in inner:
            if any(isinstance(m, nn.Conv2d | nn.Linear) for m in module.modules()):
                name = f"{prefix}.{key}" if key else prefix
            if name:
                ends[name] = module
    return ends


def layers(model: Classifier) -> dict[str, nn.Module]:
    """Return every convolution and linear map of the model in order, by its name in it."""
    parts = (*model.get_submodule("extractor").named_children(), ("head", model.head))
    return {
        f"{prefix}.{name}" if name else prefix: module
        for prefix, part in parts
        for name, module in part.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }


def _names(module: nn.Module, prefix: str) -> Iterable[str]:
    yield from (prefix + name for name, _ in module.named_parameters())
    yield from (prefix + name for name, _ in module.named_buffers())
