"""Base classes of FML, FedKD and FedMRL, whose clients train a shared small model with their own.

The small model has the first architecture of `model.group`. Its initial weights are those with
which FedAvg of that architecture starts.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field, StrictBool
from torch import nn

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.algorithms.losses import Over
from fedray.algorithms.mean import Weights
from fedray.config import Tree
from fedray.models import AUXILIARY, WithAuxiliary, tensor_names


class AuxiliaryAveraging(core.AuxiliaryMethod, FedAvg):
    """FedAvg of the small models; each client trains its own model, too, and tests it."""

    dense = False
    clipped: ClassVar[Sequence[str]] = ("own", "auxiliary", "joint")
    """The parts of the model whose gradients `clip_norm` bounds, each part separately."""
    official_code: ClassVar[Tree] = {
        "algorithm.clip_norm": 10.0,
        "shuffle": False,
        "drop_last": True,
    }
    """The settings of FedTSP's repository and its data loader, chosen by `preset`."""

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (official code), or samples, n_k/n."""
    clip_norm: float | None = Field(None, gt=0, le=1e6)
    """Largest norm of each model's gradient; `clip_grad_norm` bounds the norm over both models.
    null: no bound (paper). Official code: 10."""

    @classmethod
    def presets(cls, experiment: Tree) -> dict[str, Tree]:
        return {"official_code": cls.official_code}

    def shared(self, model: core.Classifier) -> frozenset[str]:
        return frozenset(name for name in tensor_names(model) if name.startswith(AUXILIARY))

    def init_server(self, server: core.Server) -> core.ServerState:
        first = server.architectures[0]
        return {"model": select(server.initial(first), self.shared(server.empty(first)))}

    def train(self, local: core.LocalContext) -> core.Trained:
        """Train both models on `loss`; clip the gradients of each if `clip_norm` is set."""
        bound = self.clip_norm

        def clip() -> None:
            assert isinstance(local.model, WithAuxiliary)
            for name, parameters in local.model.parts().items():
                if bound is not None and name in self.clipped:
                    nn.utils.clip_grad_norm_(parameters, bound)

        return core.fit(local, self.batch_loss(local), before_step=clip)


class MutualLearning(AuxiliaryAveraging):
    """Training in which both models learn from labels and from each other's outputs."""

    official_code: ClassVar[Tree] = {
        **AuxiliaryAveraging.official_code,
        "algorithm.kl": "entries",
        "algorithm.teacher_gradients": True,
    }

    kl: Over = "images"
    """The mean of the KL divergence: images, over images (paper), or entries, over images and
    classes, which is C times smaller (official code)."""
    teacher_gradients: StrictBool = False
    """Whether the gradients of both losses reach both models (official code); false: each model
    is trained by its own loss, with the other's outputs as constants (paper)."""

    def teacher(self, output: core.ClassifierOutput) -> core.ClassifierOutput:
        """Return a model's output for the other model's loss, detached by default."""
        return output if self.teacher_gradients else output.detached()
