"""Clients with a small model besides their own: training of both, and FedAvg of the small ones.

Bases of FML, FedKD and FedMRL. The small model has the first architecture of `model.group`; it
starts from the weights that FedAvg of that architecture starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, StrictBool
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg, select
from fedray.algorithms.mean import Weights
from fedray.config import Tree
from fedray.core import (
    AuxiliaryMethod,
    Downlinks,
    HyperParameters,
    LocalContext,
    LocalTraining,
    Server,
    ServerState,
    Trained,
    fit,
)
from fedray.models import AUXILIARY, Classifier, ClassifierOutput, WithAuxiliary, tensor_names


class AuxiliaryTraining(AuxiliaryMethod, LocalTraining):
    """Both models are trained by one optimiser; tests ask the client's own."""

    travels = "a small model"
    clipped: ClassVar[Sequence[str]] = ("own", "auxiliary", "joint")
    """The parts of the model whose gradients `clip_norm` bounds, each for itself."""

    class HParams(HyperParameters):
        """Hyper-parameters of all methods with a small model."""

        weights: Weights = "uniform"
        """Weights of the small models' mean: equal (official code), or n_k/n."""
        clip_norm: float | None = Field(None, gt=0, le=1e6)
        """Greatest length of the gradient of each of the two models, where `clip_grad_norm` bounds
        that of both together; null: no bound (paper). Official code: 10."""

        @classmethod
        def presets(cls, experiment: Tree) -> dict[str, Tree]:
            """Return `official_code`: the settings of FedTSP's repository, loader included."""
            official = {"algorithm.clip_norm": 10.0, "shuffle": False, "drop_last": True}
            return {"official_code": official}

    hp: HParams

    def shared(self, model: Classifier) -> frozenset[str]:
        return frozenset(name for name in tensor_names(model) if name.startswith(AUXILIARY))

    def init_server(self, server: Server) -> ServerState:
        first = server.architectures[0]
        return {"model": select(server.initial(first), self.shared(server.empty(first)))}

    def train(self, local: LocalContext) -> Trained:
        """Train both models under `loss`; clip the gradients of each if `clip_norm` is set."""
        bound = self.hp.clip_norm

        def clip() -> None:
            assert isinstance(local.model, WithAuxiliary)
            for name, parameters in local.model.parts().items():
                if bound is not None and name in self.clipped:
                    nn.utils.clip_grad_norm_(parameters, bound)

        return fit(
            local,
            lambda batch: self.loss(local.model(batch.inputs), batch, local),
            before_step=clip,
        )


class AuxiliaryAveraging(AuxiliaryTraining, FedAvg):
    """Small models are communicated and averaged; own models stay with the clients."""

    class HParams(AuxiliaryTraining.HParams, FedAvg.HParams):
        """Those of both, which subclasses extend."""

    hp: HParams

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        model = server.empty(server.architectures[0])
        return dict.fromkeys(clients, self.down_type.of(model, state["model"]))


class MutualLearning(AuxiliaryTraining):
    """Both models learn from labels, and each from what the other makes of the images."""

    class HParams(AuxiliaryTraining.HParams):
        """Hyper-parameters of methods with mutual learning."""

        kl: Literal["images", "entries"] = "images"
        """Mean of the KL divergence over images (paper), or over images times classes,
        which makes it C times smaller (official code)."""
        teacher_gradients: StrictBool = False
        """Whether gradients of both losses reach both models, as in the official code; false: each
        model follows its own loss, and takes the other for a constant (paper)."""

        @classmethod
        def presets(cls, experiment: Tree) -> dict[str, Tree]:
            """Return `official_code`: the settings of FedTSP's repository, loader included."""
            official = super().presets(experiment)["official_code"]
            mutual = {"algorithm.kl": "entries", "algorithm.teacher_gradients": True}
            return {"official_code": {**official, **mutual}}

    hp: HParams

    def teacher(self, output: ClassifierOutput) -> ClassifierOutput:
        """Return one model's output as the other's loss sees it."""
        if self.hp.teacher_gradients:
            return output
        return ClassifierOutput(output.features.detach(), output.logits.detach())
