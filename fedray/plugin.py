"""The public names for authors of methods, models, data sources and metrics.

    from fedray.plugin import Batch, FedAvg, LocalContext, algorithms

Every other name of the package may change between releases. Register a class with the registry of
its kind: `@algorithms.add`, `@architecture("name")`, `@sources.add`, ...

A method extends `Algorithm` or one of its partial implementations: `LocalTraining` (add a loss per
batch), `FedAvg` (the same, and models are averaged), `SummingMethod` (add a server step on sums of
uploads), `PromptMethod` (prompts around a frozen CLIP, a `PromptedClip`), `PromptAveraging` (the
same, and prompts are averaged). A client step gets a `Client`, its `ClientState` and its download;
a server step gets `Uplinks` and the `Server`, which has the texts of the classes, a `TextTower`.
"""

from fedray.algorithms.averaging.fedavg import FedAvg, GlobalModel, TrainedModel
from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.config import Frozen, InputFile, LearningRate, LossWeight, NoParams, Temperature
from fedray.core import (
    Algorithm,
    Batch,
    Client,
    ClientState,
    Downlinks,
    Exchange,
    HyperParameters,
    LocalContext,
    LocalTraining,
    Payload,
    PromptMethod,
    Requires,
    Server,
    ServerState,
    StateTree,
    SummingMethod,
    Tensors,
    Total,
    Trained,
    Uplinks,
    algorithms,
    fit,
    mean_of,
    payload_field,
    total_of,
    weighed,
    with_extra,
)
from fedray.core.schedules import Schedule, schedules
from fedray.data import ReadOptions
from fedray.data.augment import Augmentation, augmentations
from fedray.data.imageset import TEST, TRAIN
from fedray.data.partitions import Annotations, Indices, Partition, partitions
from fedray.data.sources import Listing, Row, Source, sources
from fedray.errors import UserError
from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders
from fedray.language.tower import TextTower
from fedray.models import (
    Classifier,
    ClassifierOutput,
    Group,
    architecture,
    normalisation_tensors,
)
from fedray.models.architectures import Architecture, architectures
from fedray.models.clip import FrozenClip
from fedray.models.groups import groups
from fedray.models.prompted import ContextClip, PromptedClip
from fedray.storage.metric import Metric
