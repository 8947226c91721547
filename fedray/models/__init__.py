"""Models: what clients train.

architectures.py  what an architecture is, and the registry of them
backbones/        image backbones, one family a file
groups.py         groups of architectures, and which client trains which
classifier.py     backbone, common feature width and head
auxiliary.py      such a model with a second, small one that all clients share
inputs.py         the types of input: pixels, patch embeddings, frozen features
init.py           models with weights from a given generator, or to load a state into
pretrained.py     backbones that start from torchvision's weights
structure.py      parts of a model: buffers, normalisation, head
clip/             the frozen CLIP
prompted/         models whose parameters are prompts around it
"""

from fedray.models.architectures import Architecture, architecture
from fedray.models.auxiliary import (
    AUXILIARY,
    AuxiliaryOutput,
    FusedWithAuxiliary,
    WithAuxiliary,
)
from fedray.models.classifier import (
    BackboneClassifier,
    Classifier,
    ClassifierOutput,
    WidthAdapter,
)
from fedray.models.groups import Group, assign_architectures, group_of, is_dense
from fedray.models.init import build, initialise, own_width, skeleton, undrawn_linear
from fedray.models.inputs import ImageFeatures, Inputs, PatchEmbeddings, PatchFeatures, Pixels
from fedray.models.pretrained import check_pretrained, start_from_pretrained
from fedray.models.structure import (
    buffer_names,
    convolution_stages,
    head_tensors,
    is_normalisation,
    layers,
    normalisation_tensors,
    stages,
    tensor_names,
)
