"""Find parts of a model (buffers, normalisation, head) by the types of modules, not by names."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from fedray.models.classifier import Classifier

T = TypeVar("T")
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LayerNorm, nn.GroupNorm),
)


def _once_per_model(function: Callable[[Classifier], T]) -> Callable[[Classifier], T]:
    """Cache a function's result for each model, whose structure does not change."""
    results: WeakKeyDictionary[Classifier, T] = WeakKeyDictionary()

    @wraps(function)
    def cached(model: Classifier) -> T:
        found = results.get(model)
        if found is None:
            found = results[model] = function(model)
        return found

    return cached


def saved_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that PyTorch saves with a module, by name.

    Other buffers (`persistent=False`) are constants of the code, or caches: they neither travel nor
    are stored.
    """
    buffers = dict(module.named_buffers())
    saved = module.state_dict().keys() if buffers else ()
    return {name: tensor for name, tensor in buffers.items() if name in saved}


def is_normalisation(module: nn.Module) -> bool:
    """Return True for a normalisation layer: batch, layer, group or instance norm."""
    return isinstance(module, NORMS)


def convolution_stages(model: Classifier) -> list[nn.Module]:
    """Return the last module of every convolutional stage of the backbone, in order.

    A stage is a convolution, or a block with convolutions, and the normalisation, activation and
    max-pooling that follow: five in AlexNet, stem and stages in a residual network. The last stage
    ends before its maps are flattened or averaged.
    """
    follow = (nn.ReLU, nn.ReLU6, nn.MaxPool2d, nn.BatchNorm2d)
    ends: list[nn.Module] = []
    in_stage = False
    for part in model.get_submodule("extractor.backbone").children():
        if any(isinstance(module, nn.Conv2d) for module in part.modules()):
            ends.append(part)
            in_stage = True
        elif in_stage and isinstance(part, follow):
            ends[-1] = part
        else:
            in_stage = False
    return ends


@_once_per_model
def modules_of(model: Classifier) -> tuple[tuple[nn.Module, ...], frozenset[str]]:
    """Return all modules in a model, without the model itself, and `frozen_parameters`."""
    return tuple(model.modules())[1:], frozen_parameters(model)


@_once_per_model
def head_tensors(model: Classifier) -> frozenset[str]:
    """Return the names of the head's parameters and buffers."""
    return frozenset(_names(model.head, "head."))


@_once_per_model
def tensor_names(model: Classifier) -> frozenset[str]:
    """Return the names of all parameters and buffers."""
    return frozenset(_names(model, ""))


@_once_per_model
def frozen_parameters(model: Classifier) -> frozenset[str]:
    """Return the names of the parameters that the model's constructor has frozen.

    These keep their values in every training. `core.training.only_trainable` freezes others for a
    while, so this is called before that.
    """
    return frozenset(name for name, tensor in model.named_parameters() if not tensor.requires_grad)


@_once_per_model
def learnable_parameters(model: Classifier) -> frozenset[str]:
    """Return the names of the parameters that the model's constructor has not frozen."""
    return frozenset(name for name, _ in model.named_parameters()) - frozen_parameters(model)


@_once_per_model
def is_tied(model: Classifier) -> bool:
    """Return True if a parameter has two names."""
    names = [*model.named_parameters(remove_duplicate=False)]
    return len(names) > len([*model.parameters()])


@_once_per_model
def buffer_names(model: Classifier) -> frozenset[str]:
    """Return the names of all buffers: running statistics and counters."""
    return frozenset(saved_buffers(model))


@_once_per_model
def normalisation_tensors(model: Classifier) -> frozenset[str]:
    """Return the names of all parameters and buffers of normalisation layers."""
    return frozenset(
        name
        for prefix, module in model.named_modules()
        if is_normalisation(module)
        for name in _names(module, f"{prefix}.")
    )


def layers(model: Classifier) -> dict[str, nn.Module]:
    """Return every convolution and linear layer of a model by name, in order."""
    return {
        name.removeprefix("extractor."): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and name.startswith(("extractor.", "head"))
    }


def _names(module: nn.Module, prefix: str) -> Iterable[str]:
    yield from (prefix + name for name, _ in module.named_parameters())
    yield from (prefix + name for name in saved_buffers(module))
