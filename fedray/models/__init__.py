"""Image models: backbones and their groups, the common feature width, heads, initial weights.

`architectures(group, num_clients)` says who trains what, `build(name, ...)` makes a `Classifier`
with weights from a given generator, `skeleton(name, ...)` one to load a state into.
"""

from fedray.models.backbones import ARCHITECTURES, Architecture, Pixels
from fedray.models.classifier import Classifier, ClassifierOutput, WidthAdapter
from fedray.models.groups import GROUPS, architectures, is_dense
from fedray.models.init import build, initialise, skeleton
from fedray.models.structure import (
    head_tensors,
    is_normalisation,
    normalisation_tensors,
    tensor_names,
)

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Classifier",
    "ClassifierOutput",
    "GROUPS",
    "Pixels",
    "WidthAdapter",
    "architectures",
    "build",
    "head_tensors",
    "initialise",
    "is_dense",
    "is_normalisation",
    "normalisation_tensors",
    "skeleton",
    "tensor_names",
]
