"""The public names for authors of methods, models, data sources and metrics, at most 60.

    from fedray.plugin import Batch, FedAvg, LocalContext, method

Every other name of the package may change between releases. Register a class with the registry of
its kind: `@method("name", "title", "paper")`, `@architecture("name")`, `@sources.add`, ...

A method extends `Algorithm` or one of its partial implementations: `LocalTraining` (add a loss per
batch), `FedAvg` (the same, and models are averaged), `PromptMethod` (prompts around a frozen CLIP,
a `PromptedClip`), `PromptAveraging` (the same, and prompts are averaged). A client step gets a
`Client`, its `ClientState` and its download; a server step gets what `up` combines of the uploads,
and the `Server`, which has the texts of the classes.
"""

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.config import Frozen, InputFile, LossWeight, NoParams
from fedray.core import (
    Algorithm,
    Batch,
    Client,
    ClientState,
    Exchange,
    LocalContext,
    LocalTraining,
    PromptMethod,
    Requires,
    Server,
    ServerState,
    Total,
    Trained,
    algorithms,
    fit,
    gift,
    method,
    sent,
    step,
    with_extra,
)
from fedray.core.schedules import Schedule, schedules
from fedray.data import ReadOptions
from fedray.data.augment import Augmentation, augmentations
from fedray.data.imageset import OfficialSplit
from fedray.data.partitions import Annotations, Partition, partitions
from fedray.data.sources import Listing, Row, Source, sources
from fedray.errors import UserError
from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders
from fedray.models import (
    Classifier,
    ClassifierOutput,
    Group,
    architecture,
    normalisation_tensors,
)
from fedray.models.clip import FrozenClip
from fedray.models.groups import groups
from fedray.models.inputs import Pixels
from fedray.models.prompted import ContextClip, PromptedClip
from fedray.storage.metric import Metric

__all__ = [
    "Algorithm", "algorithms", "Annotations", "architecture", "Augmentation", "augmentations",
    "Batch", "Classifier", "ClassifierOutput", "Client", "ClientState", "ContextClip",
    "EncoderChoice", "encoders", "Evaluated", "Exchange", "FedAvg", "fit", "Frozen", "FrozenClip",
    "gift", "Group", "groups", "InputFile", "Listing", "LocalContext", "LocalTraining",
    "LossWeight", "Measure", "method", "Metric", "metrics", "NoParams", "normalisation_tensors",
    "OfficialSplit", "Partition", "partitions", "Pixels", "PromptAveraging", "PromptedClip",
    "PromptMethod", "ReadOptions", "Requires", "Row", "Schedule", "schedules", "sent", "Server",
    "ServerState", "Source", "sources", "step", "TextEncoder", "Total", "Trained", "UserError",
    "with_extra",
]  # fmt: skip
