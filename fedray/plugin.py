"""The public names for authors of methods, models, data sources and metrics, at most 40.

    from fedray.plugin import FedAvg, method

Every other name of the package may change between releases. Register a class with the registry of
its kind: `@method("name", "title", "paper")`, `@architecture("name")`, `@sources.add`, ...

A method extends `Algorithm` or one of its partial implementations: `LocalTraining` (add a loss per
batch), `FedAvg` (the same, and models are averaged), `ExtraParameters` (the same, with parameters
of one's own), `PromptMethod` (prompts around a frozen CLIP, a `PromptedClip`), `PromptAveraging`
(the same, and prompts are averaged).
"""

from fedray.algorithms.averaging.fedavg import ExtraParameters, FedAvg
from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.base.errors import UserError
from fedray.config import InputFile, LossWeight
from fedray.core import (
    Algorithm,
    LocalTraining,
    PromptMethod,
    Requires,
    fit,
    gift,
    method,
    sent,
    step,
    with_extra,
)
from fedray.core.optimizers import Schedule, schedules
from fedray.data.augment import Augmentation, augmentations
from fedray.data.imageset import OfficialSplit
from fedray.data.partitions import Partition, partitions
from fedray.data.sources import Listing, Row, Source, sources
from fedray.evaluation.metrics import Measure, metrics
from fedray.language.encoders.base import EncoderChoice, TextEncoder, encoders
from fedray.models import Group, architecture
from fedray.models.groups import groups
from fedray.models.inputs import Pixels
from fedray.models.prompted import ContextClip, PromptedClip
from fedray.storage.metric import Metric

__all__ = [
    "Algorithm", "architecture", "Augmentation", "augmentations", "ContextClip", "EncoderChoice",
    "encoders", "ExtraParameters", "FedAvg", "fit", "gift", "Group", "groups",
    "InputFile", "Listing", "LocalTraining", "LossWeight", "Measure", "method", "Metric", "metrics",
    "OfficialSplit", "Partition", "partitions", "Pixels", "PromptAveraging", "PromptedClip",
    "PromptMethod", "Requires", "Row", "Schedule", "schedules", "sent", "Source", "sources", "step",
    "TextEncoder", "UserError", "with_extra",
]  # fmt: skip
