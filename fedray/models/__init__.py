"""The models that clients train.

architectures.py  the class of architectures and its registry
backbones/        image backbones, one family per file
groups.py         groups of architectures, and their assignment to clients
classifier.py     a classifier: backbone, common feature width and head
auxiliary.py      a classifier together with a small one that all clients share
inputs.py         the types of input: pixels, patch embeddings, frozen features
init.py           build models with weights drawn from a generator, or to load a state into
pretrained.py     load torchvision's weights into backbones
structure.py      find parts of a model: buffers, normalisation, head
clip/             the frozen CLIP
prompted/         models whose parameters are prompts around the frozen CLIP
"""

from fedray.models.architectures import Architecture, architecture
from fedray.models.auxiliary import AUXILIARY, AuxiliaryOutput, FusedWithAuxiliary, WithAuxiliary
from fedray.models.classifier import BackboneClassifier, Classifier, ClassifierOutput, WidthAdapter
from fedray.models.groups import Group, assign_architectures, group_of, is_dense
from fedray.models.init import (
    build,
    drawn_linear,
    initialise,
    own_width,
    undrawn_linear,
)
from fedray.models.inputs import ImageFeatures, Inputs, PatchFeatures, Pixels
from fedray.models.pretrained import check_pretrained, start_from_pretrained
from fedray.models.structure import (
    buffer_names,
    convolution_stages,
    frozen_parameters,
    head_tensors,
    is_normalisation,
    is_tied,
    layers,
    learnable_parameters,
    modules_of,
    normalisation_tensors,
    saved_buffers,
    tensor_names,
)
