"""Image models: backbones and their groups, the common feature width, heads, initial weights.

`architectures(group, num_clients)` says who trains what, `build(name, ...)` makes a `Classifier`
with weights from a given generator, `skeleton(name, ...)` one to load a state into.
"""

from fedray.models.backbones import ARCHITECTURES, Architecture, Pixels
from fedray.models.classifier import (
    BackboneClassifier,
    Classifier,
    ClassifierOutput,
    WidthAdapter,
)
from fedray.models.groups import GROUPS, architectures, is_dense
from fedray.models.init import build, initialise, skeleton
from fedray.models.pretrained import check_pretrained, load_pretrained
from fedray.models.structure import (
    buffer_names,
    convolution_stages,
    head_tensors,
    is_normalisation,
    normalisation_tensors,
    stages,
    tensor_names,
)

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "BackboneClassifier",
    "Classifier",
    "ClassifierOutput",
    "GROUPS",
    "Pixels",
    "WidthAdapter",
    "architectures",
    "buffer_names",
    "build",
    "check_pretrained",
    "convolution_stages",
    "head_tensors",
    "initialise",
    "is_dense",
    "is_normalisation",
    "load_pretrained",
    "normalisation_tensors",
    "skeleton",
    "stages",
    "tensor_names",
]
